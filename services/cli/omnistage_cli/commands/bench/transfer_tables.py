"""What `omnistage bench transfer` shows to people: what was measured, and how it stands to the targets."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from omnistage_cli.bench.transfer.report import TARGETS, TransferReport
from omnistage_cli.commands.bench.sizes import size_in_words

__all__ = ["tables_of"]


def tables_of(report: TransferReport) -> Iterator[Table]:
    """A table of the rows and one of the targets."""
    yield _rows(report)
    yield _targets(report)


def _rows(report: TransferReport) -> Table:
    table = Table(title=f"A tensor from one process to another, {report.cores} cores")
    for heading in ("size", "method", "p50 ms", "GB/s", "x copy", "x socket"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    before = 0
    for row in report.rows:
        if row.bytes != before:
            table.add_section()
        table.add_row(
            size_in_words(row.bytes) if row.bytes != before else "",
            row.method.value,
            f"{row.p50_ms:.3f}",
            f"{row.gb_per_s:.2f}",
            _ratio(row.to_copy),
            _ratio(row.to_socket),
        )
        before = row.bytes
    return table


def _targets(report: TransferReport) -> Table:
    table = Table(title="Targets")
    for heading in ("what", "target", "measured", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for target in TARGETS:
        value: float | None = getattr(report.ratios, target.ratio)
        bound = f"{'at most' if target.at_most else 'at least'} {target.bound:g}{target.unit}"
        if value is None:
            table.add_row(target.what, bound, "", "not measured")
            continue
        met = target.met(value)
        verdict = Text("met" if met else "missed", style="green" if met else "bold red")
        table.add_row(target.what, bound, f"{value:.2f}{target.unit}", verdict)
    return table


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
