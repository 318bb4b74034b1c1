"""Panels and dashboards as Grafana's JSON, and the PromQL that they ask with.

Knows Grafana's format and none of our metrics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.common.telemetry.metric import Metric

Json = dict[str, Any]

_SCHEMA = 41
"""Of Grafana 12; later ones read it."""
_COLUMNS = 24
_HEIGHT = 8
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_TIME = "$__rate_interval"
QUANTILES = (0.5, 0.95, 0.99)


# PromQL


def selector(metric: Metric, suffix: str = "", **labels: str) -> str:
    """The series of a metric in the jobs that the dashboard shows; a label's value may be a
    pattern."""
    matchers = [f'{name}=~"{value}"' for name, value in {"job": "$job", **labels}.items()]
    return f"{metric.name}{suffix}{{{','.join(matchers)}}}"


def total(metric: Metric, *by: str, **labels: str) -> str:
    """Sum of a gauge."""
    return _over("sum", by, selector(metric, **labels))


def highest(metric: Metric, *by: str, **labels: str) -> str:
    """Largest value of a gauge that several processes tell alike."""
    return _over("max", by, selector(metric, **labels))


def rate(metric: Metric, *by: str, suffix: str = "", **labels: str) -> str:
    """Growth a second, summed."""
    return _over("sum", by, f"rate({selector(metric, suffix, **labels)}[{_TIME}])")


def quantile(q: float, metric: Metric, *by: str, **labels: str) -> str:
    """Quantile of a histogram."""
    return f"histogram_quantile({q}, {rate(metric, 'le', *by, suffix='_bucket', **labels)})"


def mean(metric: Metric, *by: str, **labels: str) -> str:
    """Mean of a histogram."""
    return ratio(
        rate(metric, *by, suffix="_sum", **labels), rate(metric, *by, suffix="_count", **labels)
    )


def ratio(part: str, whole: str) -> str:
    """One by the other; nothing where the other is 0."""
    return f"{part} / ({whole} > 0)"


def _over(operation: str, by: Sequence[str], what: str) -> str:
    return f"{operation} by ({', '.join(by)}) ({what})" if by else f"{operation}({what})"


# Panels


@dataclass(frozen=True, slots=True)
class Line:
    """What a panel asks for, and what it calls the answer."""

    query: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture."""

    title: str
    about: str
    unit: str
    """Grafana's name of it."""
    lines: Sequence[Line]
    stacked: bool = False
    most: float | None = None
    """Upper end of the axis; None: as it comes."""

    def json(self, number: int, x: int, y: int, width: int) -> Json:
        """As Grafana has it, at a place."""
        custom: Json = {
            "drawStyle": "line",
            "fillOpacity": 20 if self.stacked else 5,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if self.stacked else "none"},
        }
        defaults: Json = {"unit": self.unit, "min": 0, "custom": custom}
        if self.most is not None:
            defaults["max"] = self.most
        return {
            "id": number,
            "type": "timeseries",
            "title": self.title,
            "description": self.about,
            "datasource": _DATASOURCE,
            "gridPos": {"h": _HEIGHT, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": {
                "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]},
                "tooltip": {"mode": "multi", "sort": "desc"},
            },
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": _DATASOURCE,
                    "expr": line.query,
                    "legendFormat": line.legend,
                    "exemplar": line.query.startswith("histogram_quantile"),
                }
                for index, line in enumerate(self.lines)
            ],
        }


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, side by side."""

    title: str
    panels: Sequence[Panel]
    across: int = 3
    """Panels beside each other."""


def quantiles(metric: Metric, by: str = "", **labels: str) -> list[Line]:
    """The usual quantiles of a histogram, for each value of a label."""
    legend = f"{{{{{by}}}}} " if by else ""
    names = [by] if by else []
    return [Line(quantile(q, metric, *names, **labels), f"{legend}p{q * 100:g}") for q in QUANTILES]


# Dashboards


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of rows."""

    name: str
    title: str
    about: str
    rows: Sequence[Row]

    def json(self) -> Json:
        """As Grafana imports it."""
        return {
            "uid": f"baton-{self.name}",
            "title": f"Baton / {self.title}",
            "description": self.about,
            "tags": ["baton"],
            "schemaVersion": _SCHEMA,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [
                {
                    "type": "dashboards",
                    "title": "Baton",
                    "tags": ["baton"],
                    "asDropdown": True,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": [_datasource(), _jobs()]},
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        made: list[Json] = []
        y = 0
        for row in self.rows:
            made.append(_heading(row.title, len(made) + 1, y))
            y += 1
            width = _COLUMNS // row.across
            for index, panel in enumerate(row.panels):
                down, right = divmod(index, row.across)
                at = y + down * _HEIGHT
                made.append(panel.json(len(made) + 1, right * width, at, width))
            y += -(-len(row.panels) // row.across) * _HEIGHT
        return made


def _heading(title: str, number: int, y: int) -> Json:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": y},
        "panels": [],
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _jobs() -> Json:
    query = "label_values(baton_process_build_info, job)"
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "jobs"},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }
