"""The operations that models are made of: one module each, chosen by device.

Plain functions of tensors; they know no engine, request, sequence or model family.
"""

from kernels.registry import Kernels, kernels_for

__all__ = ["Kernels", "kernels_for"]
