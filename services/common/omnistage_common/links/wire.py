"""Frames to protobuf and back: the only place where the link's domain types meet generated code.

Decoding is strict about what would otherwise travel on as nonsense (an unset kind, a tensor whose
bytes do not fit its header) and raises `ProtocolViolation`.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import ProtocolViolation, error_from_code
from omnistage_common.ids import (
    HostId,
    Incarnation,
    LeaseId,
    OutputName,
    RequestId,
    RequestNumber,
)
from omnistage_common.links.frames import (
    Cancel,
    Credit,
    Data,
    Delivery,
    End,
    Error,
    FinishReason,
    Frame,
    FromOpener,
    FromReplica,
    Open,
    Phase,
    Release,
    Status,
    Usage,
)
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    ElementType,
    Message,
    Output,
    Parameters,
    Payload,
    PayloadKind,
    SharedMemoryLocation,
    Tensor,
    TensorHeader,
    TensorRef,
    TextPart,
)
from omnistage_protos.stage.v1 import stage_pb2 as pb
from omnistage_protos.tensor.v1 import tensor_pb2 as tensor_pb

__all__ = [
    "decode_from_opener",
    "decode_from_replica",
    "encode_from_opener",
    "encode_from_replica",
    "phase_to_pb",
]

V = TypeVar("V")

_KINDS: Final = {kind: pb.PayloadKind.Value(f"PAYLOAD_KIND_{kind.name}") for kind in PayloadKind}
_KINDS_BACK: Final[dict[int, PayloadKind]] = {number: kind for kind, number in _KINDS.items()}
_ELEMENTS: Final = {
    element: tensor_pb.ElementType.Value(f"ELEMENT_TYPE_{element.name}") for element in ElementType
}
_ELEMENTS_BACK: Final[dict[int, ElementType]] = {
    number: element for element, number in _ELEMENTS.items()
}
_PHASES: Final = {phase: pb.Phase.Value(f"PHASE_{phase.name}") for phase in Phase}
_PHASES_BACK: Final[dict[int, Phase]] = {number: phase for phase, number in _PHASES.items()}
_OPTIONAL_PARAMETERS: Final = (
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "voice",
    "speed",
)
_FINISH: Final = {
    FinishReason.NONE: pb.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
_FINISH_BACK: Final[dict[int, FinishReason]] = {
    number: reason for reason, number in _FINISH.items()
}
_DELIVERIES: Final = {
    Delivery.FINAL: pb.DELIVERY_FINAL,
    Delivery.DELTAS: pb.DELIVERY_DELTAS,
}
_DELIVERIES_BACK: Final[dict[int, Delivery]] = {
    pb.DELIVERY_UNSPECIFIED: Delivery.FINAL,
    **{number: delivery for delivery, number in _DELIVERIES.items()},
}


def phase_to_pb(phase: Phase) -> pb.Phase.ValueType:
    """The wire value of a phase."""
    return _PHASES[phase]


def encode_from_opener(frames: Iterable[FromOpener]) -> pb.LinkRequest:
    """The message that carries these frames."""
    message = pb.LinkRequest()
    for frame in frames:
        _fill(message.frames.add(), frame)
    return message


def encode_from_replica(frames: Iterable[FromReplica]) -> pb.LinkResponse:
    """The message that carries these frames."""
    message = pb.LinkResponse()
    for frame in frames:
        _fill(message.frames.add(), frame)
    return message


# Messages are filled in place: a message given to another's constructor is copied, and a tensor
# within frames within a batch would be copied at each level.


def _fill(into: pb.Frame, frame: Frame) -> None:
    if isinstance(frame, Status):
        into.status.phase = _PHASES[frame.phase]
        into.status.message = frame.message
        into.status.incarnation = frame.incarnation
        into.status.host = frame.host
        return
    into.request = frame.request
    match frame:
        case Data():
            into.data.sequence = frame.sequence
            for output in frame.outputs:
                _fill_output(into.data.outputs.add(), output)
        case Open():
            _fill_open(into.open, frame)
        case End():
            _fill_end(into.end, frame)
        case Credit():
            into.credit.frames = frame.frames
        case Cancel():
            into.cancel.reason = frame.reason
            into.cancel.SetInParent()
        case Release():
            into.release.SetInParent()
        case Error():
            _fill_error(into.error, frame)


def _fill_open(into: pb.Open, frame: Open) -> None:
    into.request_id = frame.request_id
    into.deadline_unix_us = frame.deadline.to_unix_us()
    into.credit = frame.credit
    into.delivery = _DELIVERIES[frame.delivery]
    for item in frame.inputs:
        port = into.inputs.add()
        port.name = item.name
        port.index = item.index
        _fill_payload(port.payload, item.payload)
    _fill_parameters(into.parameters, frame.parameters)


def _fill_parameters(into: pb.Parameters, parameters: Parameters) -> None:
    for name in _OPTIONAL_PARAMETERS:
        value = getattr(parameters, name)
        if value is not None:
            setattr(into, name, value)
    if parameters.stop:
        into.stop.extend(parameters.stop)
    if parameters.ignore_eos:
        into.ignore_eos = True


def _fill_end(into: pb.End, frame: End) -> None:
    usage = frame.usage
    into.finish_reason = _FINISH[frame.finish_reason]
    into.usage.input_tokens = usage.input_tokens
    into.usage.output_tokens = usage.output_tokens
    into.usage.queue_us = usage.queue_us
    into.usage.run_us = usage.run_us
    into.usage.first_output_us = usage.first_output_us
    into.data_frames = frame.data_frames


def _fill_error(into: pb.Error, frame: Error) -> None:
    error = frame.error
    into.code = error.code
    into.message = error.message
    into.field = error.field
    if error.retry_after is not None:
        into.retry_after_ms = max(1, round(error.retry_after * 1000))


def _fill_output(into: pb.Output, output: Output) -> None:
    into.name = output.name
    _fill_payload(into.payload, output.payload)
    if output.index:
        into.index = output.index


def _fill_payload(into: pb.Payload, payload: Payload) -> None:
    into.kind = _KINDS[payload.kind]
    content = payload.content
    if isinstance(content, str):
        into.text = content
    elif isinstance(content, Tensor):
        _fill_header(into.inline.header, content.header)
        data = content.data
        into.inline.data = data if isinstance(data, bytes) else data.tobytes()
    elif isinstance(content, TensorRef):
        _fill_ref(into.ref, content)
    else:
        into.conversation.SetInParent()
        for message in content.messages:
            _fill_message(into.conversation.messages.add(), message)


def _fill_message(into: pb.Message, message: Message) -> None:
    into.role = message.role
    for part in message.parts:
        if isinstance(part, TextPart):
            into.parts.add().text = part.text
        else:
            into.parts.add().audio = part.index


def _fill_header(into: tensor_pb.TensorHeader, header: TensorHeader) -> None:
    into.element_type = _ELEMENTS[header.element_type]
    into.shape.extend(header.shape)
    if header.rate_hz:
        into.rate_hz = header.rate_hz


def _fill_ref(into: tensor_pb.TensorRef, ref: TensorRef) -> None:
    _fill_header(into.header, ref.header)
    into.lease = ref.lease
    into.incarnation = ref.incarnation
    into.length = ref.length
    into.checksum = ref.checksum
    into.shared_memory.host = ref.location.host
    into.shared_memory.segment = ref.location.segment
    into.shared_memory.offset = ref.location.offset


def decode_from_opener(message: pb.LinkRequest) -> list[FromOpener]:
    """The frames of a message.

    Raises:
        ProtocolViolation: A frame is of a kind that an opener does not send, or is malformed.
    """
    return [_decode_from_opener(frame) for frame in message.frames]


def decode_from_replica(message: pb.LinkResponse) -> list[FromReplica]:
    """The frames of a message.

    Raises:
        ProtocolViolation: A frame is of a kind that a replica does not send, or is malformed.
    """
    return [_decode_from_replica(frame) for frame in message.frames]


def _decode_from_opener(frame: pb.Frame) -> FromOpener:
    number = RequestNumber(frame.request)
    kind = frame.WhichOneof("kind")
    if kind == "open":
        return _open_from_pb(number, frame.open)
    if kind == "credit":
        return Credit(request=number, frames=frame.credit.frames)
    if kind == "release":
        return Release(request=number)
    if kind == "cancel":
        return Cancel(request=number, reason=frame.cancel.reason)
    raise ProtocolViolation(f"an opener does not send frames of kind {kind}")


def _decode_from_replica(frame: pb.Frame) -> FromReplica:
    number = RequestNumber(frame.request)
    kind = frame.WhichOneof("kind")
    if kind == "data":
        outputs = tuple(_output_from_pb(output) for output in frame.data.outputs)
        return Data(request=number, sequence=frame.data.sequence, outputs=outputs)
    if kind == "end":
        return _end_from_pb(number, frame.end)
    if kind == "error":
        error = frame.error
        retry_after = error.retry_after_ms / 1000 if error.retry_after_ms else None
        return Error(
            request=number,
            error=error_from_code(
                error.code, error.message, field=error.field, retry_after=retry_after
            ),
        )
    if kind == "status":
        status = frame.status
        return Status(
            phase=_known(_PHASES_BACK, status.phase, "phase"),
            message=status.message,
            incarnation=Incarnation(status.incarnation),
            host=HostId(status.host),
        )
    raise ProtocolViolation(f"a replica does not send frames of kind {kind}")


def _known(table: dict[int, V], number: int, what: str) -> V:
    try:
        return table[number]
    except KeyError as unknown:
        raise ProtocolViolation(f"unknown {what} {number}") from unknown


def _open_from_pb(number: RequestNumber, frame: pb.Open) -> Open:
    return Open(
        request=number,
        request_id=RequestId(frame.request_id),
        deadline=Deadline.from_unix_us(frame.deadline_unix_us),
        credit=frame.credit,
        delivery=_known(_DELIVERIES_BACK, frame.delivery, "delivery"),
        inputs=tuple(
            Output(
                name=OutputName(item.name),
                payload=_payload_from_pb(item.payload),
                index=item.index,
            )
            for item in frame.inputs
        ),
        parameters=_parameters_from_pb(frame.parameters),
    )


def _parameters_from_pb(message: pb.Parameters) -> Parameters:
    given = {descriptor.name: value for descriptor, value in message.ListFields()}
    if "stop" in given:
        given["stop"] = tuple(message.stop)
    return Parameters(**given)


def _end_from_pb(number: RequestNumber, frame: pb.End) -> End:
    usage = frame.usage
    return End(
        request=number,
        finish_reason=_known(_FINISH_BACK, frame.finish_reason, "finish reason"),
        usage=Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            queue_us=usage.queue_us,
            run_us=usage.run_us,
            first_output_us=usage.first_output_us,
        ),
        data_frames=frame.data_frames,
    )


def _output_from_pb(output: pb.Output) -> Output:
    return Output(
        name=OutputName(output.name),
        payload=_payload_from_pb(output.payload),
        index=output.index,
    )


def _payload_from_pb(payload: pb.Payload) -> Payload:
    kind = _known(_KINDS_BACK, payload.kind, "payload kind")
    content = payload.WhichOneof("content")
    if content == "text":
        return Payload(kind=kind, content=payload.text)
    if content == "inline":
        return Payload(kind=kind, content=_tensor_from_pb(payload.inline))
    if content == "ref":
        return Payload(kind=kind, content=_ref_from_pb(payload.ref))
    if content == "conversation":
        return Payload(kind=kind, content=_conversation_from_pb(payload.conversation))
    raise ProtocolViolation(f"a payload of kind {kind.value} without content")


def _conversation_from_pb(conversation: pb.Conversation) -> Conversation:
    return Conversation(
        messages=tuple(
            Message(
                role=message.role,
                parts=tuple(_part_from_pb(part) for part in message.parts),
            )
            for message in conversation.messages
        )
    )


def _part_from_pb(part: pb.Part) -> TextPart | AudioPart:
    content = part.WhichOneof("content")
    if content == "text":
        return TextPart(text=part.text)
    if content == "audio":
        return AudioPart(index=part.audio)
    raise ProtocolViolation("a message part without content")


def _header_from_pb(header: tensor_pb.TensorHeader) -> TensorHeader:
    return TensorHeader(
        element_type=_known(_ELEMENTS_BACK, header.element_type, "element type"),
        shape=tuple(header.shape),
        rate_hz=header.rate_hz,
    )


def _tensor_from_pb(inline: pb.InlineTensor) -> Tensor:
    header = _header_from_pb(inline.header)
    if len(inline.data) != header.length:
        raise ProtocolViolation(
            f"a tensor of {len(inline.data)} bytes whose header says {header.length}"
        )
    return Tensor(header=header, data=inline.data)


def _ref_from_pb(ref: tensor_pb.TensorRef) -> TensorRef:
    if ref.WhichOneof("location") != "shared_memory":
        raise ProtocolViolation("a tensor reference without a location")
    location = ref.shared_memory
    return TensorRef(
        header=_header_from_pb(ref.header),
        lease=LeaseId(ref.lease),
        incarnation=Incarnation(ref.incarnation),
        length=ref.length,
        checksum=ref.checksum,
        location=SharedMemoryLocation(
            host=HostId(location.host), segment=location.segment, offset=location.offset
        ),
    )
