"""Which implementation of each operation a device gets.

Every operation has a reference in plain torch, which runs on any device. A faster
implementation for a device takes its place in `kernels_for`, under the same signature.
"""

from dataclasses import dataclass

import torch

from kernels.gated_activation import GatedActivation, gated_activation
from kernels.linear import PackLinear, pack_linear
from kernels.mix_experts import MixExperts, mix_experts
from kernels.paged_attention import PagedAttention, paged_attention
from kernels.paged_plan import PlanAttention, plan_attention
from kernels.rms_norm import RMSNormKernel, rms_norm
from kernels.rotary import Rotary, rotary
from kernels.tied_table import PackTiedTable, pack_tied_table
from kernels.write_kv import WriteKV, write_kv


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of every operation."""

    family: str
    """Goes into the KV layout's fingerprint: whose rounding the KV carries."""
    gated_activation: GatedActivation
    mix_experts: MixExperts
    pack_linear: PackLinear
    pack_tied_table: PackTiedTable
    plan_attention: PlanAttention
    paged_attention: PagedAttention
    rms_norm: RMSNormKernel
    rotary: Rotary
    write_kv: WriteKV


REFERENCE = Kernels(
    family="torch-reference",
    gated_activation=gated_activation,
    mix_experts=mix_experts,
    pack_linear=pack_linear,
    pack_tied_table=pack_tied_table,
    plan_attention=plan_attention,
    paged_attention=paged_attention,
    rms_norm=rms_norm,
    rotary=rotary,
    write_kv=write_kv,
)


def kernels_for(device: torch.device) -> Kernels:  # noqa: ARG001 - the reference runs on any device
    """The best implementation of each operation on `device`."""
    return REFERENCE
