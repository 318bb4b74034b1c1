"""What a checkpoint that cannot be loaded raises."""

from pathlib import Path


class LoadError(Exception):
    """Names the file and what in it is at fault: an architecture, a setting, a tensor."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path}: {fault}")
        self.path = path
        self.fault = fault
