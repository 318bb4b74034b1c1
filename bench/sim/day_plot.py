"""Draws a simulated day: what was asked for, the pools, and what was held."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from baton.policy.fleet import Role
from bench.sim.days import Day, documents
from bench.sim.life import Life
from bench.sim.scaled import Scaled

PIECES = 96
INK, GRID = "#333333", "#dddddd"
COLOURS = {Role.PREFILL: "#1f77b4", Role.DECODE: "#d95f02"}
HELD = (("first token", "#1b7837", Life.holds_ttft), ("between tokens", "#762a83", Life.holds_itl))


def plot(path: Path, day: Day, planned: Scaled, peak: Scaled, hours: float) -> None:
    """Writes the planner's day as an SVG file that is the same for the same day."""
    matplotlib.rcParams |= {
        "svg.hashsalt": "baton",
        "svg.fonttype": "none",
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": GRID,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    figure = Figure(figsize=(8, 7), layout="constrained")
    figure.patch.set_facecolor("white")
    load, pools, held = figure.subplots(3, 1, sharex=True, height_ratios=(2, 3, 2))
    hour = planned.duration_s / 24
    _load(load, day, planned, hour)
    _pools(pools, day, planned, hour)
    _held(held, day, planned, hour)
    for axes in (load, pools, held):
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(loc="lower left" if axes is held else "upper left", frameon=False, ncols=2)
    held.set_xlim(0, 24)
    held.set_xticks(range(0, 25, 3))
    held.set_xlabel(f"hour of the day (simulated in {hours:g} hours)")
    share = planned.gpu_hours / peak.gpu_hours
    load.set_title(
        f"The planner's day: {100 * planned.held:.1f} % held both targets with "
        f"{100 * share:.0f} % of the GPU time of pools of fixed size that held "
        f"{100 * peak.held:.1f} %",
        fontsize=9.5,
        loc="left",
    )
    figure.savefig(path, format="svg", metadata={"Date": None})


def _load(axes: Axes, day: Day, result: Scaled, hour: float) -> None:
    edges = _edges(result)
    times = [sum(pair) / 2 / hour for pair in pairwise(edges)]
    kinds = {True: [0.0] * PIECES, False: [0.0] * PIECES}
    for one in day.load.arrivals:
        piece = min(PIECES - 1, int(PIECES * one.at_s / result.duration_s))
        kinds[bool(documents([one.line]))][piece] += PIECES / result.duration_s
    axes.stackplot(
        times,
        kinds[True],
        kinds[False],
        labels=["long prompts, short answers", "short prompts, long answers"],
        colors=["#9ecae1", "#fdbe85"],
    )
    axes.set_ylim(0, 1.3 * max(map(sum, zip(*kinds.values(), strict=True))))  # for the legend
    axes.set_ylabel("requests/s")


def _pools(axes: Axes, day: Day, result: Scaled, hour: float) -> None:
    times = [sample.at_s / hour for sample in result.samples]
    for role, colour in COLOURS.items():
        asked = [sample.replicas[role] for sample in result.samples]
        axes.step(times, asked, where="post", color=colour, label=f"{role.value} workers")
        axes.axhline(day.peak[role], color=colour, linestyle=":", linewidth=1)
    axes.plot([], [], color=INK, linestyle=":", linewidth=1, label="what the peak needs")
    axes.set_ylim(0, None)
    axes.margins(y=0.25)
    axes.set_ylabel("workers asked for")


def _held(axes: Axes, day: Day, result: Scaled, hour: float) -> None:
    edges = _edges(result)[::4]
    times = [sum(pair) / 2 / hour for pair in pairwise(edges)]
    for label, colour, holds in HELD:
        axes.plot(times, _shares(result.lives, edges, holds), color=colour, label=label)
    axes.axhline(100 * day.config.attainment, color=INK, linestyle=":", linewidth=1)
    low = min(axes.get_ylim()[0], 100 * day.config.attainment)
    axes.set_ylim(low - 0.3 * (101 - low), 101)
    axes.set_ylabel("targets held, %")


def _shares(
    lives: Sequence[Life], edges: Sequence[float], holds: Callable[[Life], bool]
) -> list[float]:
    """Percent of the requests that came between two edges; who was refused held nothing."""
    shares = []
    for begin_s, end_s in pairwise(edges):
        came = [life for life in lives if begin_s <= life.arrived_s < end_s]
        shares.append(100 * sum(map(holds, came)) / len(came) if came else float("nan"))
    return shares


def _edges(result: Scaled) -> list[float]:
    return [result.duration_s * piece / PIECES for piece in range(PIECES + 1)]
