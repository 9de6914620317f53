"""The figures of a benchmark as plain text, for terminals and for README."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.bench.store import Figure, Report, Row

if TYPE_CHECKING:
    from harness.bench import spark


def print_report(report: Report, console: Console) -> None:
    """A table of rates with their ratios, one of the other figures, and what could not be measured."""
    rates = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rates.add_column("operations per second")
    for name in ("ours", "raw", "Quix", "ours / raw", "ours / Quix"):
        rates.add_column(name, justify="right")
    for row in report.rows:
        rates.add_row(*_rate_cells(row))
    console.print(rates)
    console.print(_figures(report.figures))
    _print_rest([f"{row.name} ({other})" for row in report.rows for other in _missed(row)], report, console)


def print_rates(report: spark.Report, console: Console) -> None:
    """The same of the benchmark on Spark."""
    rates = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rates.add_column("records per second")
    for name in ("", "/ native Spark", "/ Quix"):
        rates.add_column(name, justify="right")
    missed = []
    for row in report.rows:
        ratios = (
            ("native Spark", row.ratio_native_spark, row.target_native_spark),
            ("Quix", row.ratio_quix, row.target_quix),
        )
        rates.add_row(
            row.name,
            f"{row.records_per_second:,.0f}",
            *(_ratio(ratio, target) for _, ratio, target in ratios),
        )
        missed += [f"{row.name} ({other})" for other, *of in ratios if _is_missed(*of)]
    console.print(rates)
    console.print(_figures(report.figures))
    _print_rest(missed, report, console)


def _figures(measured: list[Figure]) -> Table:
    figures = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    figures.add_column("figure")
    for name in ("measured", "at most"):
        figures.add_column(name, justify="right")
    for figure in measured:
        figures.add_row(*_figure_cells(figure))
    return figures


def _print_rest(missed: list[str], report: Report | spark.Report, console: Console) -> None:
    missed = missed + [
        figure.name
        for figure in report.figures
        if figure.at_most is not None and figure.value > figure.at_most
    ]
    console.print(Text(", ".join(f"{name} {what}" for name, what in report.environment.items())))
    if missed:
        console.print(Text(f"Behind its target: {'; '.join(missed)}"))
    for note in report.notes:
        console.print(Text(note))


def _missed(row: Row) -> list[str]:
    """The others to which the ratio is below its target."""
    return [
        other
        for other, ratio, target in (
            ("raw", row.ratio_raw, row.target_raw),
            ("Quix", row.ratio_quix, row.target_quix),
        )
        if _is_missed(ratio, target)
    ]


def _is_missed(ratio: float | None, target: float | None) -> bool:
    return ratio is not None and target is not None and ratio < target


def _rate_cells(row: Row) -> list[str]:
    return [
        row.name,
        *("" if rate is None else f"{rate:,.0f}" for rate in (row.ours, row.raw, row.quix)),
        _ratio(row.ratio_raw, row.target_raw),
        _ratio(row.ratio_quix, row.target_quix),
    ]


def _ratio(ratio: float | None, target: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if target is None else f"{ratio:.2f} (≥ {target:g})"


def _figure_cells(figure: Figure) -> list[str]:
    digits = 3 if figure.value < 1 else 2 if figure.value < 100 else 0
    at_most = "" if figure.at_most is None else f"{figure.at_most:g} {figure.unit}"
    return [figure.name, f"{figure.value:,.{digits}f} {figure.unit}", at_most]
