"""Frames to protobuf and back: the only place where the link's domain types meet generated code.

Decoding is strict, as for payloads: what is malformed raises `ProtocolViolation`.
"""

from collections.abc import Iterable
from typing import Final

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import ProtocolViolation, error_from_code
from omnistage_common.ids import (
    HostId,
    Incarnation,
    OutputName,
    RequestId,
    RequestNumber,
    StreamToken,
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
    Inlet,
    Open,
    Outlet,
    Phase,
    Progress,
    Release,
    Status,
    Subscribe,
    Usage,
)
from omnistage_common.links.wire_payloads import (
    fill_parameters,
    fill_payload,
    known,
    parameters_from_pb,
    payload_from_pb,
)
from omnistage_common.payloads import Output
from omnistage_protos.stage.v1 import stage_pb2 as pb

__all__ = [
    "decode_from_opener",
    "decode_from_replica",
    "encode_from_opener",
    "encode_from_replica",
    "phase_to_pb",
]

_PHASES: Final = {phase: pb.Phase.Value(f"PHASE_{phase.name}") for phase in Phase}
_PHASES_BACK: Final[dict[int, Phase]] = {number: phase for phase, number in _PHASES.items()}
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
        case Progress():
            into.progress.done = frame.done
            into.progress.total = frame.total
        case _:
            _fill_rarer(into, frame)


def _fill_rarer(into: pb.Frame, frame: Subscribe | Cancel | Release | Error) -> None:
    match frame:
        case Subscribe():
            into.subscribe.token = frame.token
            into.subscribe.deadline_unix_us = frame.deadline.to_unix_us()
            into.subscribe.credit = frame.credit
            into.subscribe.incarnation = frame.incarnation
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
        fill_payload(port.payload, item.payload)
    fill_parameters(into.parameters, frame.parameters)
    for inlet in frame.inlets:
        _fill_inlet(into.inlets.add(), inlet)
    for outlet in frame.outlets:
        _fill_outlet(into.outlets.add(), outlet)
    if frame.withheld:
        into.withheld.extend(frame.withheld)
    if frame.credit_releases:
        into.credit_releases = True


def _fill_inlet(into: pb.Inlet, inlet: Inlet) -> None:
    into.token = inlet.token
    into.address = inlet.address
    into.incarnation = inlet.incarnation
    into.outputs.extend(inlet.outputs)


def _fill_outlet(into: pb.Outlet, outlet: Outlet) -> None:
    into.token = outlet.token
    into.outputs.extend(outlet.outputs)
    into.first_frames = outlet.first_frames
    into.frames = outlet.frames


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
    fill_payload(into.payload, output.payload)
    if output.index:
        into.index = output.index


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
    if kind == "subscribe":
        return _subscribe_from_pb(number, frame.subscribe)
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
    if kind == "progress":
        return Progress(request=number, done=frame.progress.done, total=frame.progress.total)
    if kind == "status":
        status = frame.status
        return Status(
            phase=known(_PHASES_BACK, status.phase, "phase"),
            message=status.message,
            incarnation=Incarnation(status.incarnation),
            host=HostId(status.host),
        )
    raise ProtocolViolation(f"a replica does not send frames of kind {kind}")


def _open_from_pb(number: RequestNumber, frame: pb.Open) -> Open:
    return Open(
        request=number,
        request_id=RequestId(frame.request_id),
        deadline=Deadline.from_unix_us(frame.deadline_unix_us),
        credit=frame.credit,
        delivery=known(_DELIVERIES_BACK, frame.delivery, "delivery"),
        inputs=tuple(
            Output(
                name=OutputName(item.name),
                payload=payload_from_pb(item.payload),
                index=item.index,
            )
            for item in frame.inputs
        ),
        parameters=parameters_from_pb(frame.parameters),
        inlets=tuple(map(_inlet_from_pb, frame.inlets)),
        outlets=tuple(map(_outlet_from_pb, frame.outlets)),
        withheld=tuple(map(OutputName, frame.withheld)),
        credit_releases=frame.credit_releases,
    )


def _inlet_from_pb(inlet: pb.Inlet) -> Inlet:
    return Inlet(
        token=StreamToken(inlet.token),
        address=inlet.address,
        incarnation=Incarnation(inlet.incarnation),
        outputs=tuple(OutputName(name) for name in inlet.outputs),
    )


def _outlet_from_pb(outlet: pb.Outlet) -> Outlet:
    return Outlet(
        token=StreamToken(outlet.token),
        outputs=tuple(OutputName(name) for name in outlet.outputs),
        first_frames=max(1, outlet.first_frames),
        frames=max(1, outlet.frames),
    )


def _subscribe_from_pb(number: RequestNumber, frame: pb.Subscribe) -> Subscribe:
    return Subscribe(
        request=number,
        token=StreamToken(frame.token),
        deadline=Deadline.from_unix_us(frame.deadline_unix_us),
        credit=frame.credit,
        incarnation=Incarnation(frame.incarnation),
    )


def _end_from_pb(number: RequestNumber, frame: pb.End) -> End:
    usage = frame.usage
    return End(
        request=number,
        finish_reason=known(_FINISH_BACK, frame.finish_reason, "finish reason"),
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
        payload=payload_from_pb(output.payload),
        index=output.index,
    )
