"""The dashboards of KV: on its way, and in the engines' pools."""

from services.catalogue.grafana import (
    Dashboard,
    Line,
    Panel,
    Row,
    quantiles,
    rate,
    ratio,
    total,
)
from services.catalogue.worker_rows import (
    kv_row,
)
from services.router import metrics as router
from services.router import request_metrics as requests
from services.transfer import metrics as transfer
from services.worker import device_metrics as device
from services.worker import metrics as worker

TRANSFER = Dashboard(
    "transfer",
    "Transfer",
    "KV on its way from worker to worker: how much, how fast, and what went wrong.",
    [
        Row(
            "Handoffs",
            [
                Panel(
                    "Waiting for KV",
                    "What sequences waited for KV from the transfer service.",
                    "s",
                    quantiles(worker.FETCH, "service"),
                ),
                Panel(
                    "Bytes",
                    "Bytes a second published, fetched, and read from other hosts.",
                    "Bps",
                    [
                        Line(rate(worker.PUBLISHED_BYTES), "published"),
                        Line(rate(worker.FETCHED_BYTES), "fetched"),
                        Line(rate(transfer.PEER_BYTES), "from other hosts"),
                    ],
                ),
                Panel(
                    "Recomputed",
                    "Handoffs a second of which some KV had to be computed again, and its tokens.",
                    "cps",
                    [
                        Line(rate(worker.RECOMPUTED), "handoffs"),
                        Line(rate(requests.RECOMPUTED_TOKENS), "tokens"),
                    ],
                ),
            ],
        ),
        Row(
            "The store",
            [
                Panel(
                    "Segments",
                    "Bytes in use of each worker's segment, cached blobs included, by its size.",
                    "percentunit",
                    [
                        Line(
                            f"{total(transfer.USED, 'worker')} / "
                            f"{total(transfer.SEGMENT, 'worker')}",
                            "{{worker}}",
                        )
                    ],
                    most=1.0,
                ),
                Panel(
                    "Held",
                    "Blobs, those under a lease, leases, and places reserved for writing.",
                    "short",
                    [
                        Line(total(transfer.BLOBS), "blobs"),
                        Line(total(transfer.LEASED), "leased blobs"),
                        Line(total(transfer.LEASES), "leases"),
                        Line(total(transfer.RESERVATIONS), "reservations"),
                    ],
                ),
                Panel(
                    "Blobs",
                    "Blobs a second that were committed, given out, asked for in vain, evicted.",
                    "cps",
                    [
                        Line(rate(transfer.COMMITTED), "committed"),
                        Line(rate(transfer.DUPLICATE), "held already"),
                        Line(rate(transfer.ACQUIRED), "given out"),
                        Line(rate(transfer.MISSED), "missed"),
                        Line(rate(transfer.EVICTED), "evicted"),
                    ],
                ),
                Panel(
                    "Waiting",
                    "Readers that wait for other hosts, and writers that wait for room, at a "
                    "time: seconds of waiting in a second.",
                    "short",
                    [
                        Line(rate(transfer.PEER_SECONDS), "for other hosts"),
                        Line(rate(transfer.ROOM_SECONDS), "for room"),
                    ],
                ),
                Panel(
                    "What went wrong",
                    "Broken blobs, blobs that did not come from other hosts, leases that expired, "
                    "and times that workers gave the service up.",
                    "cps",
                    [
                        Line(rate(transfer.CORRUPT), "corrupt"),
                        Line(rate(worker.CORRUPT), "corrupt when read"),
                        Line(rate(transfer.PEER_FAILURES), "not had from other hosts"),
                        Line(rate(transfer.EXPIRED), "leases expired"),
                        Line(rate(worker.GIVEN_UP), "service given up"),
                    ],
                ),
                Panel(
                    "Workers attached",
                    "Workers with a segment to publish into. The others serve, but nothing that "
                    "they compute can be handed over.",
                    "short",
                    [Line(total(worker.ATTACHED, "service"), "{{service}}")],
                ),
            ],
        ),
    ],
)

KV = Dashboard(
    "kv-cache",
    "KV and cache",
    "Blocks of the engines' pools, and what caches save.",
    [
        kv_row(),
        Row(
            "Caches",
            [
                Panel(
                    "Prompt tokens from caches",
                    "Part of the prompt tokens that no one had to compute.",
                    "percentunit",
                    [
                        Line(
                            ratio(
                                rate(requests.CACHED, "class"),
                                rate(requests.PROMPT, "class", suffix="_sum"),
                            ),
                            "{{class}}",
                        )
                    ],
                    most=1.0,
                ),
                Panel(
                    "Names that routers know",
                    "Blobs in the index by which each router finds cached prefixes.",
                    "short",
                    [Line(total(router.INDEXED, "process"), "{{process}}")],
                ),
                Panel(
                    "Drift of handed-over KV",
                    "Largest difference of a log probability between KV that was handed over and "
                    "KV computed again, of a sampled few handoffs.",
                    "short",
                    quantiles(device.CANARIES),
                ),
            ],
        ),
    ],
)
