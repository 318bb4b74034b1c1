"""Runs a decode worker: `python -m services.decode --model ... --transfer ... --redis ...`."""

from functools import partial

from baton.policy.fleet import Role
from services.common.process import leave, read_settings, run
from services.decode.settings import DecodeSettings
from services.worker.assembly import run_worker
from services.worker.decoding.service import make_servicer


def main() -> None:
    """Reads the settings and runs until a signal."""
    settings = read_settings(DecodeSettings)
    run("decode", settings, partial(run_worker, settings, Role.DECODE, [make_servicer]))
    leave()


if __name__ == "__main__":
    main()
