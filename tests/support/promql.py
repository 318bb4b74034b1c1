"""Queries of dashboards and alert rules, taken apart."""

import promql_parser as promql


def expression_of(query: str) -> promql.Expr:
    """A query, parsed; Grafana's own interval stands for some minutes."""
    return promql.parse(query.replace("$__rate_interval", "5m"))


def referred(expression: promql.Expr) -> list[promql.VectorSelector]:
    """All that it selects."""
    found: list[promql.VectorSelector] = []

    def visit(one: promql.Expr) -> None:
        if isinstance(one, promql.VectorSelector):
            found.append(one)
        elif isinstance(one, promql.MatrixSelector):
            found.append(one.vector_selector)

    promql.walk(expression, visit)
    return found


def names_in(expression: promql.Expr) -> set[str]:
    """Names of all series that it selects."""
    names = {one.name for one in referred(expression)}
    assert names, "selects nothing"
    return names


def windows_of(expression: promql.Expr) -> list[float]:
    """Seconds that its range selectors look back."""
    found: list[float] = []

    def visit(one: promql.Expr) -> None:
        if isinstance(one, promql.MatrixSelector):
            found.append(one.range.total_seconds())

    promql.walk(expression, visit)
    return found
