"""Frames survive the wire, and what is not a frame does not get through."""

from collections.abc import Callable

import msgspec
import pytest

from fakes.frames import (
    data,
    end,
    open_frame,
    outlet,
    reference,
    subscribe_frame,
    tensor,
    text_output,
)
from omnistage_common.errors import (
    InvalidRequest,
    OmnistageError,
    ProtocolViolation,
    ServerError,
    TooManyRequests,
)
from omnistage_common.ids import HostId, Incarnation, OutputName, RequestNumber, StreamToken
from omnistage_common.links import wire
from omnistage_common.links.frames import (
    Cancel,
    Credit,
    Delivery,
    End,
    Error,
    FinishReason,
    FromOpener,
    FromReplica,
    Inlet,
    Open,
    Phase,
    Progress,
    Release,
    Status,
    Subscribe,
    Usage,
)
from omnistage_common.links.replica_link import Streams
from omnistage_common.links.wire_payloads import fill_payload
from omnistage_common.payloads import (
    AudioPart,
    Content,
    Conversation,
    DeviceTensor,
    DiffusionParameters,
    ElementType,
    Message,
    Output,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
    TextPart,
)
from omnistage_protos.stage.v1 import stage_pb2 as pb
from omnistage_protos.tensor.v1 import tensor_pb2 as tensor_pb

ONE = RequestNumber(1)
CLOCK_SLACK = 1e-3
"""Seconds that a deadline may move by being told in another clock."""
ALL_PARAMETERS = Parameters(
    max_tokens=16,
    temperature=0.7,
    top_p=0.9,
    seed=-5,
    stop=("\n", "", "End"),
    presence_penalty=-0.5,
    frequency_penalty=1.5,
    voice="alto",
    speed=1.25,
    ignore_eos=True,
    diffusion=DiffusionParameters(
        width=640,
        height=480,
        steps=20,
        guidance_scale=3.5,
        true_cfg_scale=4.0,
        negative_prompt="",
        frames=9,
        seconds=1.5,
        count=2,
    ),
)
ZERO_PARAMETERS = Parameters(
    max_tokens=0,
    temperature=0.0,
    top_p=0.0,
    seed=0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    voice="",
    speed=0.0,
)
CONVERSATION = Conversation(
    messages=(
        Message(role="system", parts=()),
        Message(role="user", parts=(TextPart(text=""), AudioPart(index=0), AudioPart(index=7))),
    )
)
SCALAR = Tensor(header=TensorHeader(element_type=ElementType.FLOAT32, shape=()), data=b"1234")
NOTHING = Tensor(header=TensorHeader(element_type=ElementType.INT16, shape=(0, 3)), data=b"")
SOUND = Tensor(
    header=TensorHeader(element_type=ElementType.INT16, shape=(2, 1), rate_hz=24_000),
    data=b"\x00\x01\xff\x7f",
)


def through_replica(frame: FromOpener) -> FromOpener:
    """The frame as a replica sees it."""
    message = pb.LinkRequest.FromString(wire.encode_from_opener([frame]).SerializeToString())
    (decoded,) = wire.decode_from_opener(message)
    return decoded


def through_opener(frame: FromReplica) -> FromReplica:
    """The frame as an opener sees it."""
    message = pb.LinkResponse.FromString(wire.encode_from_replica([frame]).SerializeToString())
    (decoded,) = wire.decode_from_replica(message)
    return decoded


def payload_of(content: Content, kind: PayloadKind = PayloadKind.TEXT) -> Output:
    """A piece of output number 3."""
    return Output(name=OutputName("piece"), payload=Payload(kind=kind, content=content), index=3)


def assert_same_open(decoded: FromOpener, frame: Open) -> None:
    """Equal but for what the clocks do to a deadline."""
    assert isinstance(decoded, Open)
    assert decoded.deadline.monotonic == pytest.approx(frame.deadline.monotonic, abs=CLOCK_SLACK)
    assert msgspec.structs.replace(decoded, deadline=frame.deadline) == frame


@pytest.mark.parametrize(
    "frame",
    [
        Credit(request=ONE, frames=5),
        Credit(request=ONE, frames=0),
        Cancel(request=ONE, reason="client gone"),
        Cancel(request=ONE, reason=""),
        Release(request=RequestNumber(2**63)),
    ],
)
def test_an_openers_frame_comes_back(frame: FromOpener) -> None:
    assert through_replica(frame) == frame


@pytest.mark.parametrize("parameters", [Parameters(), ALL_PARAMETERS, ZERO_PARAMETERS])
@pytest.mark.parametrize("delivery", Delivery)
def test_an_open_comes_back_with_everything_in_it(
    delivery: Delivery, parameters: Parameters
) -> None:
    frame = open_frame(
        1,
        credit=0,
        delivery=delivery,
        seconds=-3.0,
        inputs=(
            text_output("first", name="a"),
            text_output("second", name="a"),
            reference(),
            reference(on_device=True),
        ),
        parameters=parameters,
    )

    assert_same_open(through_replica(frame), frame)


def test_an_open_comes_back_with_its_streams() -> None:
    inlet = Inlet(
        token=StreamToken("in"),
        address="127.0.0.1:1",
        incarnation=Incarnation("life"),
        outputs=(OutputName("a"), OutputName("b")),
    )
    streams = Streams(
        inlets=(inlet,),
        outlets=(outlet("x", "codes", first_frames=4, frames=25), outlet("y", "text")),
        withheld=(OutputName("codes"),),
        credit_releases=True,
    )
    frame = open_frame(1, streams=streams)

    assert_same_open(through_replica(frame), frame)


def test_a_subscribe_comes_back() -> None:
    frame = subscribe_frame(7, "token", "life", credit=3, seconds=9)

    decoded = through_replica(frame)

    assert isinstance(decoded, Subscribe)
    assert decoded.deadline.monotonic == pytest.approx(frame.deadline.monotonic, abs=CLOCK_SLACK)
    assert msgspec.structs.replace(decoded, deadline=frame.deadline) == frame


def test_chunk_sizes_that_are_not_set_are_one_frame() -> None:
    bare = pb.Frame(request=1, open=pb.Open(outlets=[pb.Outlet(outputs=["a"])]))

    (decoded,) = wire.decode_from_opener(pb.LinkRequest(frames=[bare]))

    assert isinstance(decoded, Open)
    assert decoded.outlets == (outlet("", "a", first_frames=1, frames=1),)


def test_an_open_without_inputs_comes_back() -> None:
    frame = open_frame(9)

    assert_same_open(through_replica(frame), frame)


@pytest.mark.parametrize("kind", PayloadKind)
def test_every_kind_of_payload_comes_back(kind: PayloadKind) -> None:
    frame = data(1, 0, payload_of("", kind))

    assert through_opener(frame) == frame


@pytest.mark.parametrize("element", ElementType)
def test_every_element_type_comes_back(element: ElementType) -> None:
    header = TensorHeader(element_type=element, shape=(2,))
    frame = data(1, 0, payload_of(Tensor(header=header, data=bytes(2 * element.size))))

    assert through_opener(frame) == frame


@pytest.mark.parametrize(
    "content",
    ["", "naïve \U0001f600", CONVERSATION, Conversation(messages=()), SCALAR, NOTHING, SOUND],
)
def test_every_content_comes_back_in_both_directions(content: Content) -> None:
    output = payload_of(content)

    assert through_opener(data(1, 4, output)) == data(1, 4, output)
    inputs = (msgspec.structs.replace(output, index=0),)
    opened = open_frame(1, inputs=inputs)
    assert_same_open(through_replica(opened), opened)


def test_a_view_of_foreign_memory_arrives_as_the_bytes_it_shows() -> None:
    whole = memoryview(bytes(range(8)))
    view = Tensor(header=tensor(4).header, data=whole[::2])

    arrived = through_opener(data(1, 0, payload_of(view)))

    assert arrived == data(1, 0, payload_of(Tensor(header=view.header, data=bytes([0, 2, 4, 6]))))


@pytest.mark.parametrize(
    "frame",
    [
        Progress(request=ONE, done=0, total=0),
        Progress(request=ONE, done=3, total=20),
        data(1, 0),
        data(2**40, 2**40, text_output(index=5), reference(lease=2**63)),
        end(1, 0),
        End(
            request=ONE,
            finish_reason=FinishReason.LENGTH,
            usage=Usage(
                input_tokens=1, output_tokens=2, queue_us=3, run_us=2**40, first_output_us=5
            ),
            data_frames=6,
        ),
    ],
)
def test_a_replicas_frame_comes_back(frame: FromReplica) -> None:
    assert through_opener(frame) == frame


@pytest.mark.parametrize("reason", FinishReason)
def test_every_finish_reason_comes_back(reason: FinishReason) -> None:
    frame = End(request=ONE, finish_reason=reason, usage=Usage(), data_frames=0)

    assert through_opener(frame) == frame


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_comes_back(phase: Phase) -> None:
    frame = Status(phase=phase, message="why", incarnation=Incarnation("life"), host=HostId("host"))

    assert through_opener(frame) == frame
    assert pb.Phase.Name(wire.phase_to_pb(phase)) == f"PHASE_{phase.name}"


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("mend it", field="messages[0]"),
        TooManyRequests("later", retry_after=1.5),
        TooManyRequests("never", retry_after=None),
    ],
)
def test_an_error_comes_back_as_the_same_class(error: OmnistageError) -> None:
    frame = through_opener(Error(request=ONE, error=error))

    assert isinstance(frame, Error)
    back = frame.error
    assert type(back) is type(error)
    assert (back.message, back.field, back.retry_after) == (
        error.message,
        error.field,
        error.retry_after,
    )


def test_a_short_wait_does_not_become_no_wait() -> None:
    frame = through_opener(Error(request=ONE, error=TooManyRequests("soon", retry_after=1e-6)))

    assert isinstance(frame, Error)
    assert frame.error.retry_after == 0.001


def test_an_error_of_a_later_release_is_a_server_error() -> None:
    message = pb.LinkResponse(frames=[pb.Frame(request=1, error=pb.Error(code="melted"))])

    (frame,) = wire.decode_from_replica(message)

    assert isinstance(frame, Error)
    assert type(frame.error) is ServerError


def test_frames_of_one_message_keep_their_order() -> None:
    frames: list[FromReplica] = [
        data(2, 0, text_output("b")),
        data(1, 0, text_output("a")),
        end(2, 1),
        end(1, 1),
    ]

    assert wire.decode_from_replica(wire.encode_from_replica(frames)) == frames


def test_no_frames_are_an_empty_message() -> None:
    assert wire.decode_from_opener(wire.encode_from_opener([])) == []
    assert wire.decode_from_replica(wire.encode_from_replica([])) == []


def test_every_unset_parameter_is_the_engines_default() -> None:
    decoded = through_replica(open_frame(1))

    assert isinstance(decoded, Open)
    assert decoded.parameters == Parameters()


def one_input(payload: pb.Payload) -> pb.Frame:
    """An Open with this input."""
    return pb.Frame(request=1, open=pb.Open(inputs=[pb.Input(name="text", payload=payload)]))


def one_tensor(header: tensor_pb.TensorHeader, content: bytes) -> pb.Frame:
    """An Open with this tensor."""
    inline = pb.InlineTensor(header=header, data=content)
    return one_input(pb.Payload(kind=pb.PAYLOAD_KIND_LATENTS, inline=inline))


def header(**fields: int) -> tensor_pb.TensorHeader:
    """A header for two bytes, but for what is named."""
    given = {"element_type": tensor_pb.ELEMENT_TYPE_UINT8} | fields
    return tensor_pb.TensorHeader(shape=[2], **given)  # type: ignore[arg-type]


def open_with_delivery(number: int) -> pb.Frame:
    """An Open that wants its outputs in a way of its own."""
    opened = pb.Open()
    opened.delivery = number  # type: ignore[assignment]
    return pb.Frame(request=1, open=opened)


MALFORMED: dict[str, pb.Frame] = {
    "an empty frame": pb.Frame(request=1),
    "a replica's frame": pb.Frame(request=1, data=pb.Data()),
    "a status": pb.Frame(status=pb.Status(phase=pb.PHASE_READY)),
    "a payload without a kind": one_input(pb.Payload(text="words")),
    "a payload without content": one_input(pb.Payload(kind=pb.PAYLOAD_KIND_TEXT)),
    "a payload that was never set": pb.Frame(request=1, open=pb.Open(inputs=[pb.Input(name="a")])),
    "a tensor without a header": one_tensor(tensor_pb.TensorHeader(), b""),
    "a tensor without an element type": one_tensor(header(element_type=0), b"12"),
    "a tensor of a later element type": one_tensor(header(element_type=99), b"12"),
    "a tensor with too few bytes": one_tensor(header(), b"1"),
    "a tensor with too many bytes": one_tensor(header(), b"123"),
    "a reference to nowhere": one_input(
        pb.Payload(kind=pb.PAYLOAD_KIND_LATENTS, ref=tensor_pb.TensorRef(header=header()))
    ),
    "a message part that is nothing": one_input(
        pb.Payload(
            kind=pb.PAYLOAD_KIND_CONVERSATION,
            conversation=pb.Conversation(messages=[pb.Message(role="user", parts=[pb.Part()])]),
        )
    ),
    "an unknown delivery": open_with_delivery(9),
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED)
def test_a_replica_refuses(frame: pb.Frame) -> None:
    with pytest.raises(ProtocolViolation):
        wire.decode_from_opener(pb.LinkRequest(frames=[frame]))


def changed(change: Callable[[pb.Frame], None]) -> pb.Frame:
    """A frame of a replica with one thing wrong."""
    frame = pb.Frame(request=1)
    change(frame)
    return frame


def unknown_finish(frame: pb.Frame) -> None:
    frame.end.finish_reason = 9  # type: ignore[assignment]


@pytest.mark.parametrize(
    "frame",
    [
        pb.Frame(request=1),
        pb.Frame(request=1, open=pb.Open()),
        pb.Frame(request=1, cancel=pb.Cancel()),
        pb.Frame(status=pb.Status()),
        pb.Frame(request=1, data=pb.Data(outputs=[pb.Output(name="text")])),
        changed(unknown_finish),
    ],
)
def test_an_opener_refuses(frame: pb.Frame) -> None:
    with pytest.raises(ProtocolViolation):
        wire.decode_from_replica(pb.LinkResponse(frames=[frame]))


def test_an_unset_delivery_is_final() -> None:
    (frame,) = wire.decode_from_opener(pb.LinkRequest(frames=[open_with_delivery(0)]))

    assert isinstance(frame, Open)
    assert frame.delivery is Delivery.FINAL


def test_a_tensor_on_a_device_of_this_process_does_not_travel() -> None:
    class Memory:
        device, address, size, on_host = "cpu", 4096, 4096, True

        def read(self, offset: int, length: int) -> memoryview:
            raise AssertionError(offset, length)

        def write(self, offset: int, data: bytes | memoryview) -> None:
            raise AssertionError(offset, data)

    content = DeviceTensor(header=SCALAR.header, memory=Memory(), offset=64)
    with pytest.raises(ProtocolViolation, match="published first"):
        fill_payload(pb.Payload(), Payload(kind=PayloadKind.LATENTS, content=content))
