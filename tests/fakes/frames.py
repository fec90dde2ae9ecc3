"""Frames and payloads as tests of links need them: complete, with little to say."""

from typing import Final

from omnistage_common.deadlines import Deadline
from omnistage_common.ids import (
    HostId,
    Incarnation,
    LeaseId,
    OutputName,
    RequestId,
    RequestNumber,
    StreamToken,
)
from omnistage_common.links.frames import (
    Data,
    Delivery,
    End,
    FinishReason,
    Open,
    Outlet,
    Subscribe,
    Usage,
)
from omnistage_common.links.replica_link import NO_STREAMS, Streams
from omnistage_common.payloads import (
    DeviceLocation,
    ElementType,
    Output,
    Parameters,
    Payload,
    PayloadKind,
    SharedMemoryLocation,
    Tensor,
    TensorHeader,
    TensorRef,
)

__all__ = [
    "data",
    "end",
    "open_frame",
    "outlet",
    "reference",
    "rows",
    "rows_of",
    "subscribe_frame",
    "tensor",
    "text_output",
]

_NO_PARAMETERS: Final = Parameters()


def text_output(text: str = "words", *, name: str = "text", index: int = 0) -> Output:
    """An output, or an input, of text."""
    payload = Payload(kind=PayloadKind.TEXT, content=text)
    return Output(name=OutputName(name), payload=payload, index=index)


def tensor(length: int, fill: bytes = b"\x07") -> Tensor:
    """A tensor of that many equal bytes."""
    header = TensorHeader(element_type=ElementType.UINT8, shape=(length,))
    return Tensor(header=header, data=fill * length)


def reference(length: int = 1 << 20, *, lease: int = 1, on_device: bool = False) -> Output:
    """An output that refers to a tensor which nobody holds."""
    slab = SharedMemoryLocation(
        host=HostId("somewhere"), segment="omnistage-1-0000000000000000", offset=0
    )
    ref = TensorRef(
        header=TensorHeader(element_type=ElementType.UINT8, shape=(length,)),
        lease=LeaseId(lease),
        incarnation=Incarnation("someone"),
        length=length,
        checksum=1,
        location=DeviceLocation(device="cuda:0", offset=64) if on_device else slab,
    )
    payload = Payload(kind=PayloadKind.WAVEFORM, content=ref)
    return Output(name=OutputName("audio"), payload=payload)


def open_frame(
    number: int,
    *,
    request_id: str = "",
    credit: int = 8,
    delivery: Delivery = Delivery.DELTAS,
    seconds: float = 30.0,
    inputs: tuple[Output, ...] = (),
    parameters: Parameters = _NO_PARAMETERS,
    streams: Streams = NO_STREAMS,
) -> Open:
    """An Open whose deadline is that many seconds from now."""
    return Open(
        request=RequestNumber(number),
        request_id=RequestId(request_id or f"request-{number}"),
        deadline=Deadline.after(seconds),
        credit=credit,
        delivery=delivery,
        inputs=inputs,
        parameters=parameters,
        inlets=streams.inlets,
        outlets=streams.outlets,
        withheld=streams.withheld,
        credit_releases=streams.credit_releases,
    )


def subscribe_frame(
    number: int,
    token: str,
    incarnation: str,
    *,
    credit: int = 8,
    seconds: float = 30.0,
) -> Subscribe:
    """A Subscribe whose deadline is that many seconds from now."""
    return Subscribe(
        request=RequestNumber(number),
        token=StreamToken(token),
        deadline=Deadline.after(seconds),
        credit=credit,
        incarnation=Incarnation(incarnation),
    )


def outlet(token: str, *outputs: str, first_frames: int = 1, frames: int = 1) -> Outlet:
    """An outlet of those outputs."""
    return Outlet(
        token=StreamToken(token),
        outputs=tuple(map(OutputName, outputs)),
        first_frames=first_frames,
        frames=frames,
    )


def rows(*values: int, width: int = 4, rate_hz: int = 0) -> Payload:
    """Codec frames, one row for each value, which every element of it has."""
    header = TensorHeader(
        element_type=ElementType.UINT8, shape=(len(values), width), rate_hz=rate_hz
    )
    data = b"".join(bytes([value]) * width for value in values)
    return Payload(kind=PayloadKind.CODEC_FRAMES, content=Tensor(header=header, data=data))


def rows_of(payload: Payload) -> list[int]:
    """The values that `rows` was given."""
    content = payload.content
    assert isinstance(content, Tensor)
    count, width = content.header.shape
    data = bytes(content.data)
    assert len(data) == count * width
    assert all(len(set(data[at : at + width])) == 1 for at in range(0, len(data), width))
    return list(data[::width])


def data(number: int, sequence: int = 0, *outputs: Output) -> Data:
    """A Data frame."""
    return Data(request=RequestNumber(number), sequence=sequence, outputs=outputs)


def end(number: int, data_frames: int = 0) -> End:
    """An End frame."""
    return End(
        request=RequestNumber(number),
        finish_reason=FinishReason.STOP,
        usage=Usage(),
        data_frames=data_frames,
    )
