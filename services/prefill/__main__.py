"""Runs a prefill worker: `python -m services.prefill --model ... --transfer ... --redis ...`.

It continues sequences too, for when no decode worker lives.
"""

from functools import partial

from baton.policy.fleet import Role
from services.common.process import leave, read_settings, run
from services.prefill.service import make_servicer
from services.prefill.settings import PrefillSettings
from services.worker.assembly import run_worker
from services.worker.decoding.service import make_servicer as make_decode_servicer


def main() -> None:
    """Reads the settings and runs until a signal."""
    settings = read_settings(PrefillSettings)
    servicers = [make_servicer, make_decode_servicer]
    run("prefill", settings, partial(run_worker, settings, Role.PREFILL, servicers))
    leave()


if __name__ == "__main__":
    main()
