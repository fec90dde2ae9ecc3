"""What was measured, as medians beside one another, and what that says of the targets. No I/O.

A ratio is a speed over a speed: 0.8 of a copy is a tensor that takes 1.25 times as long. Where a target
is for all sizes from some size on, the ratio is that of the size where it is worst.
"""

import operator
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from omnistage_cli.bench.transfer.methods import MIB, PAUSES, Method
from omnistage_cli.bench.transfer.orders import Move, Round

__all__ = ["TARGETS", "Ratios", "Row", "Tally", "Target", "TransferReport", "report_of"]


class Row(Struct, frozen=True, kw_only=True):
    """A method with tensors of one size; medians of all transfers."""

    method: Method
    bytes: int
    p50_ms: float
    gb_per_s: float
    """10^9 bytes per second, at the median."""
    best_ms: float
    transfers: int
    to_copy: float | None = None
    """Its speed over that of the copy."""
    to_socket: float | None = None
    """Its speed over that of the socket."""
    publish_ms: float | None = None
    """Of the tensor plane: from the tensor to the reference; so are the next two."""
    hand_over_ms: float | None = None
    """From the reference at the producer to the reference at the consumer."""
    fetch_ms: float | None = None
    """From there to the bytes."""


class Ratios(Struct, frozen=True, kw_only=True):
    """What the targets are about; None where it was not measured."""

    shared_memory_to_copy: float | None
    """From 16 MiB on."""
    mooncake_to_socket: float | None
    """From 64 MiB on; over TCP, as is the next."""
    mooncake_to_grpc_unary: float | None
    """From 1 MiB on."""
    mooncake_fetch_to_socket: float | None
    """From 64 MiB on, the fetch alone: what is left where a tensor is made in the slab."""
    hand_off_ms: float | None
    """4 KiB from engine to engine, one right after the other."""
    hand_off_idle_ms: float | None
    """The same, 50 a second."""


class TransferReport(Struct, frozen=True, kw_only=True):
    """All that was measured."""

    rows: tuple[Row, ...]
    ratios: Ratios
    cores: int
    left_out: dict[str, str]
    """Method -> why it was not measured."""


class Target(Struct, frozen=True, kw_only=True):
    """What a ratio shall be."""

    ratio: str
    """Field of `Ratios`."""
    what: str
    bound: float
    unit: str = ""
    at_most: bool = False
    """Whether less is better."""

    def met(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value <= self.bound if self.at_most else value >= self.bound


TARGETS: Final = (
    Target(ratio="shared_memory_to_copy", what="shared memory / copy, from 16 MiB", bound=0.8),
    Target(ratio="mooncake_to_socket", what="Mooncake TCP / socket, from 64 MiB", bound=0.8),
    Target(ratio="mooncake_to_grpc_unary", what="Mooncake TCP / gRPC unary, from 1 MiB", bound=4),
    Target(
        ratio="hand_off_ms",
        what="hand-off of 4 KiB from stage to stage",
        bound=0.5,
        unit=" ms",
        at_most=True,
    ),
)


class Tally:
    """Transfers as they come in."""

    def __init__(self) -> None:
        self._moves: dict[tuple[int, Method], list[Move]] = defaultdict(list)

    def add(self, finished: Round) -> None:
        """Counts one round."""
        for move in finished.moves:
            self._moves[finished.bytes, move.method].append(move)

    def rows(self) -> tuple[Row, ...]:
        """A row for each size and method, by size, and by method as they are declared."""
        order = list(Method)
        keys = sorted(self._moves, key=lambda key: (key[0], order.index(key[1])))
        medians = {key: _median(self._moves[key], operator.attrgetter("total")) for key in keys}
        return tuple(_row(*key, self._moves[key], medians) for key in keys)


def _row(
    length: int,
    method: Method,
    moves: list[Move],
    medians: Mapping[tuple[int, Method], float],
) -> Row:
    median = medians[length, method]

    def ratio_to(other: Method) -> float | None:
        found = medians.get((length, other))
        return None if found is None else round(found / median, 3)

    apart = moves[0].fetch is not None

    def part(name: str) -> float | None:
        return _ms(_median(moves, operator.attrgetter(name))) if apart else None

    return Row(
        method=method,
        bytes=length,
        p50_ms=_ms(median),
        gb_per_s=_figures(length / median),
        best_ms=_ms(min(move.total for move in moves)),
        transfers=len(moves),
        to_copy=ratio_to(Method.COPY),
        to_socket=ratio_to(Method.SOCKET),
        publish_ms=part("publish"),
        hand_over_ms=part("hand_over"),
        fetch_ms=part("fetch"),
    )


def report_of(rows: Iterable[Row], *, cores: int, left_out: dict[str, str]) -> TransferReport:
    """The rows with what they say of the targets."""
    rows = tuple(rows)
    times = {row.method: row.p50_ms for row in rows if row.method in PAUSES}
    return TransferReport(
        rows=rows,
        ratios=Ratios(
            shared_memory_to_copy=_worst(rows, Method.SHARED_MEMORY, Method.COPY, 16 * MIB),
            mooncake_to_socket=_worst(rows, Method.MOONCAKE_TCP, Method.SOCKET, 64 * MIB),
            mooncake_to_grpc_unary=_worst(rows, Method.MOONCAKE_TCP, Method.GRPC_UNARY, MIB),
            mooncake_fetch_to_socket=_worst(
                rows,
                Method.MOONCAKE_TCP,
                Method.SOCKET,
                64 * MIB,
                part=operator.attrgetter("fetch_ms"),
            ),
            hand_off_ms=times.get(Method.HAND_OFF),
            hand_off_idle_ms=times.get(Method.HAND_OFF_IDLE),
        ),
        cores=cores,
        left_out=left_out,
    )


def _worst(
    rows: tuple[Row, ...],
    method: Method,
    other: Method,
    least: int,
    *,
    part: Callable[[Row], float | None] = operator.attrgetter("p50_ms"),
) -> float | None:
    """The least ratio over all sizes from one on; None where one of the two was not measured."""
    others = {row.bytes: row.p50_ms for row in rows if row.method is other and row.bytes >= least}
    taken = {row.bytes: part(row) for row in rows if row.method is method}
    ratios = [time / own for length, time in others.items() if (own := taken.get(length))]
    return round(min(ratios), 3) if ratios else None


def _median(moves: list[Move], part: Callable[[Move], int]) -> float:
    return statistics.median(part(move) for move in moves)


def _ms(nanoseconds: float) -> float:
    return round(nanoseconds / 1e6, 4)


def _figures(value: float) -> float:
    return float(f"{value:.4g}")
