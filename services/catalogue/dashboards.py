"""All dashboards."""

from services.catalogue.kv import KV, TRANSFER
from services.catalogue.overview import OVERVIEW
from services.catalogue.phases import DECODE, PREFILL
from services.catalogue.scheduling import PLANNER, SCHEDULER

DASHBOARDS = (OVERVIEW, PREFILL, DECODE, TRANSFER, KV, SCHEDULER, PLANNER)
