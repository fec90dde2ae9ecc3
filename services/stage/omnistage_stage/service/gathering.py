"""Gathers the frames that an engine makes one by one into chunks of the size that a consumer wants.

A decoder costs about the same for one frame as for twenty-five, so a stream edge has a chunk policy:
the first chunk small, so that something can be heard early, the later ones large. Frames are the rows
of a tensor's first dimension; a chunk is exactly as many of them, the last one fewer. Only tensors
that ride inline are gathered, and a chunk stays small enough to ride inline too; text, references and
tensors without rows pass as they are, after what was gathered before them. No I/O, no clock.
"""

from math import prod

from omnistage_common.ids import OutputName
from omnistage_common.payloads import INLINE_LIMIT, Output, Payload, PayloadKind, Tensor
from omnistage_common.payloads import TensorHeader as Header

__all__ = ["Gathering"]


class _Rows:
    """Rows of one output that are not a whole chunk yet."""

    __slots__ = ("header", "kind", "parts", "rows", "target")

    def __init__(self, target: int) -> None:
        self.target = target
        self.rows = 0
        self.parts: list[bytes | memoryview] = []
        self.header: Header | None = None
        self.kind = PayloadKind.TOKENS

    def fits(self, kind: PayloadKind, header: Header) -> bool:
        """Whether rows of that header can join these."""
        mine = self.header
        return mine is None or (
            self.kind is kind
            and mine.shape[1:] == header.shape[1:]
            and mine.element_type is header.element_type
            and mine.rate_hz == header.rate_hz
        )

    def joined(self) -> Payload | None:
        """What was gathered, as one tensor; None for nothing. Starts anew."""
        header = self.header
        if header is None:
            return None
        data = b"".join(self.parts)
        shape = (self.rows, *header.shape[1:])
        whole = Header(element_type=header.element_type, shape=shape, rate_hz=header.rate_hz)
        self.rows, self.header = 0, None
        self.parts.clear()
        return Payload(kind=self.kind, content=Tensor(header=whole, data=data))


class Gathering:
    """The chunks of one outlet.

    Args:
        first_frames: Frames in the first chunk of each output.
        frames: Frames in every later one.
    """

    def __init__(self, *, first_frames: int, frames: int) -> None:
        self._first = first_frames
        self._later = frames
        self._rows: dict[tuple[OutputName, int], _Rows] = {}

    def add(self, output: Output) -> list[Output]:
        """Takes a piece of an output; the pieces that can leave now."""
        content = output.payload.content
        if not isinstance(content, Tensor) or not content.header.shape or not _row_bytes(content):
            return [*self._rest_of(output.name, output.index), output]
        rows = self._rows.get((output.name, output.index))
        if rows is None:
            rows = self._rows[output.name, output.index] = _Rows(self._first)
        ready: list[Payload | None] = []
        if not rows.fits(output.payload.kind, content.header):
            ready.append(rows.joined())
            rows.target = self._later
        self._fill(rows, output.payload.kind, content, ready)
        return _outputs(output.name, output.index, ready)

    def _fill(
        self, rows: _Rows, kind: PayloadKind, tensor: Tensor, ready: list[Payload | None]
    ) -> None:
        width = _row_bytes(tensor)
        data = memoryview(tensor.data).cast("B")
        left = tensor.header.shape[0]
        rows.kind, rows.header = kind, rows.header or tensor.header
        while left:
            full = min(rows.target, max(1, INLINE_LIMIT // width))
            taken = min(left, full - rows.rows)
            start = len(data) - left * width
            rows.parts.append(data[start : start + taken * width])
            rows.rows += taken
            left -= taken
            if rows.rows == full:
                ready.append(rows.joined())
                rows.target = self._later
                rows.header = tensor.header if left else None

    def rest(self) -> list[Output]:
        """What is left when nothing more comes."""
        return [output for name, index in self._rows for output in self._rest_of(name, index)]

    def _rest_of(self, name: OutputName, index: int) -> list[Output]:
        rows = self._rows.get((name, index))
        return [] if rows is None else _outputs(name, index, [rows.joined()])


def _row_bytes(tensor: Tensor) -> int:
    header = tensor.header
    return prod(header.shape[1:]) * header.element_type.size


def _outputs(name: OutputName, index: int, payloads: list[Payload | None]) -> list[Output]:
    return [
        Output(name=name, payload=payload, index=index)
        for payload in payloads
        if payload is not None
    ]
