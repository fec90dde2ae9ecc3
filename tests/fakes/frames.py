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
)
from omnistage_common.links.frames import Data, Delivery, End, FinishReason, Open, Usage
from omnistage_common.payloads import (
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

__all__ = ["data", "end", "open_frame", "reference", "tensor", "text_output"]

_NO_PARAMETERS: Final = Parameters()


def text_output(text: str = "words", *, name: str = "text", index: int = 0) -> Output:
    """An output, or an input, of text."""
    payload = Payload(kind=PayloadKind.TEXT, content=text)
    return Output(name=OutputName(name), payload=payload, index=index)


def tensor(length: int, fill: bytes = b"\x07") -> Tensor:
    """A tensor of that many equal bytes."""
    header = TensorHeader(element_type=ElementType.UINT8, shape=(length,))
    return Tensor(header=header, data=fill * length)


def reference(length: int = 1 << 20, *, lease: int = 1) -> Output:
    """An output that refers to a tensor which nobody holds."""
    ref = TensorRef(
        header=TensorHeader(element_type=ElementType.UINT8, shape=(length,)),
        lease=LeaseId(lease),
        incarnation=Incarnation("someone"),
        length=length,
        checksum=1,
        location=SharedMemoryLocation(
            host=HostId("somewhere"), segment="omnistage-1-0000000000000000", offset=0
        ),
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
    )


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
