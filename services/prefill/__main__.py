"""Runs a prefill worker: `python -m services.prefill --model ... --transfer ... --redis ...`."""

from functools import partial

from baton.policy.fleet import Role
from services.common.process import read_settings, run
from services.prefill.service import make_servicer
from services.prefill.settings import PrefillSettings
from services.worker.assembly import run_worker


def main() -> None:
    """Reads the settings and runs until a signal."""
    settings = read_settings(PrefillSettings)
    servicer = partial(make_servicer, publish_s=settings.publish_seconds)
    run("prefill", settings, partial(run_worker, settings, Role.PREFILL, servicer))


if __name__ == "__main__":
    main()
