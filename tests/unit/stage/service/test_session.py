"""A session: what an engine emits, and what of it may be sent when."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.frames import open_frame, reference, tensor, text_output
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import EngineFailed, TensorLost
from omnistage_common.ids import OutputName, RequestNumber, new_incarnation, this_host
from omnistage_common.links.frames import (
    Credit,
    Data,
    Delivery,
    End,
    Error,
    FinishReason,
    FromReplica,
)
from omnistage_common.links.protocol import Acceptor, RequestState
from omnistage_common.payloads import INLINE_LIMIT, Output, Payload, PayloadKind, Tensor, TensorRef
from omnistage_common.tensors import TensorPlane
from omnistage_stage.engines.protocol import EngineResult
from omnistage_stage.service.outbox import OUTPUTS_PER_FRAME
from omnistage_stage.service.session import Session

ONE = RequestNumber(1)
MIB = 1 << 20
SAID = OutputName("text")
HEARD = OutputName("transcript")
SOUND = OutputName("audio")


async def fetched(plane: TensorPlane, ref: TensorRef) -> Tensor:
    """The tensor behind a reference."""
    return await plane.fetch(ref, owner="test", deadline=Deadline.after(5))


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[TensorPlane]:
    plane = TensorPlane(
        incarnation=new_incarnation(), host=this_host(), slab_bytes=4 * MIB, directory=tmp_path
    )
    yield plane
    plane.close()


class Opened:
    """A session whose request has just been opened, and how often it called for a write."""

    def __init__(
        self, plane: TensorPlane, *inputs: Output, credit: int, delivery: Delivery
    ) -> None:
        self.acceptor = Acceptor()
        frame = open_frame(1, credit=credit, delivery=delivery, inputs=inputs)
        self.acceptor.receive(frame)
        self.wakes = 0
        self.session = Session(
            frame=frame, owner="owner", plane=plane, acceptor=self.acceptor, wake=self._wake
        )

    def _wake(self, session: Session) -> None:
        assert session is self.session
        self.wakes += 1

    def say(self, *pieces: str, name: OutputName = SAID, index: int = 0) -> None:
        """Emits pieces of text."""
        for piece in pieces:
            payload = Payload(kind=PayloadKind.TEXT, content=piece)
            self.session.emit(name, payload, index=index)

    def grant(self, frames: int) -> None:
        """A Credit comes."""
        self.acceptor.receive(Credit(request=ONE, frames=frames))
        self.session.credited(frames)

    def take(self) -> list[FromReplica]:
        """What a write would send."""
        self.wakes = 0
        return self.session.take_frames()

    def take_data(self) -> list[Output]:
        """The outputs of the one Data frame that a write would send."""
        (frame,) = self.take()
        assert isinstance(frame, Data)
        return list(frame.outputs)


@pytest.fixture
def opened(plane: TensorPlane) -> Callable[..., Opened]:
    """Opens the session of a test."""

    def make(*inputs: Output, credit: int = 2, delivery: Delivery = Delivery.DELTAS) -> Opened:
        return Opened(plane, *inputs, credit=credit, delivery=delivery)

    return make


def sound(length: int) -> Payload:
    """A waveform of that many bytes."""
    return Payload(kind=PayloadKind.WAVEFORM, content=tensor(length))


def texts(outputs: list[Output]) -> list[tuple[str, int, object]]:
    """Names, indices and contents."""
    return [(output.name, output.index, output.payload.content) for output in outputs]


def test_pieces_of_a_text_that_wait_together_leave_as_one(opened: Callable[..., Opened]) -> None:
    request = opened()
    request.say("a", "b", "")
    request.say("c")

    assert texts(request.take_data()) == [("text", 0, "abc")]


def test_texts_are_joined_by_name_and_index_and_keep_their_order(
    opened: Callable[..., Opened],
) -> None:
    request = opened()
    request.say("a", "b", name=HEARD, index=0)
    request.say("c", "d", name=HEARD, index=1)
    request.say("e", "f")
    request.say("g", name=HEARD, index=0)

    assert texts(request.take_data()) == [
        ("transcript", 0, "ab"),
        ("transcript", 1, "cd"),
        ("text", 0, "ef"),
        ("transcript", 0, "g"),
    ]


def test_tensors_are_not_joined(opened: Callable[..., Opened]) -> None:
    request = opened()
    for _ in range(3):
        request.session.emit(SOUND, sound(4))

    assert [output.payload for output in request.take_data()] == [sound(4)] * 3


def test_many_tensors_leave_in_several_frames_as_far_as_credit_goes(
    opened: Callable[..., Opened],
) -> None:
    request = opened(credit=2)
    for length in range(1, 3 * OUTPUTS_PER_FRAME):
        request.session.emit(SOUND, sound(length))
    request.session.finish(EngineResult())

    sent = request.take()
    request.grant(1)
    sent += request.take()

    *frames, last = sent
    assert isinstance(last, End)
    outputs = [output for frame in frames if isinstance(frame, Data) for output in frame.outputs]
    assert [output.payload for output in outputs] == list(
        map(sound, range(1, 3 * OUTPUTS_PER_FRAME))
    )
    assert len(frames) == 3


def test_a_text_between_tensors_stays_between_them(opened: Callable[..., Opened]) -> None:
    request = opened()
    request.session.emit(SOUND, sound(1))
    request.say("a", "b")
    request.session.emit(SOUND, sound(2))

    assert [output.name for output in request.take_data()] == ["audio", "text", "audio"]


def test_deltas_call_for_a_write_and_a_final_answer_does_not(
    opened: Callable[..., Opened],
) -> None:
    deltas, final = opened(), opened(delivery=Delivery.FINAL)
    for request in (deltas, final):
        request.say("a", "b")

    assert deltas.wakes > 0
    assert final.wakes == 0
    final.session.finish(EngineResult())
    assert final.wakes == 1


def test_a_final_answer_is_one_data_frame_and_an_end(opened: Callable[..., Opened]) -> None:
    request = opened(delivery=Delivery.FINAL, credit=1)
    for piece in "abc":
        request.say(piece)
    request.session.finish(
        EngineResult(finish_reason=FinishReason.LENGTH, input_tokens=3, output_tokens=4)
    )

    data, end = request.take()

    assert isinstance(data, Data)
    assert texts(list(data.outputs)) == [("text", 0, "abc")]
    assert isinstance(end, End)
    assert (end.finish_reason, end.data_frames) == (FinishReason.LENGTH, 1)
    assert (end.usage.input_tokens, end.usage.output_tokens) == (3, 4)


def test_an_answer_without_outputs_is_an_end_alone(opened: Callable[..., Opened]) -> None:
    request = opened(credit=0)
    request.session.finish(EngineResult())

    (end,) = request.take()

    assert isinstance(end, End)
    assert end.data_frames == 0


def test_without_credit_pieces_wait_and_are_joined(opened: Callable[..., Opened]) -> None:
    request = opened(credit=1)
    request.say("a")
    request.take_data()
    request.say("b", "c")
    assert request.take() == []
    request.say("d")

    request.grant(1)

    assert request.wakes > 0
    assert texts(request.take_data()) == [("text", 0, "bcd")]


@pytest.mark.parametrize("delivery", Delivery)
def test_an_end_waits_until_everything_before_it_could_be_sent(
    opened: Callable[..., Opened], delivery: Delivery
) -> None:
    request = opened(credit=0, delivery=delivery)
    request.say("late")
    request.session.finish(EngineResult())
    assert request.take() == []

    request.grant(1)

    assert request.wakes > 0, "the credit calls for a write"
    data, end = request.take()
    assert isinstance(data, Data)
    assert isinstance(end, End)


def test_credit_with_nothing_to_send_calls_for_no_write(opened: Callable[..., Opened]) -> None:
    request = opened()

    request.grant(1)

    assert request.wakes == 0


def test_an_end_is_sent_once(opened: Callable[..., Opened]) -> None:
    request = opened()
    request.session.finish(EngineResult())

    assert len(request.take()) == 1
    request.say("a straggler of a step loop")
    request.grant(1)
    assert request.take() == []


async def test_a_large_tensor_leaves_as_a_reference_and_the_request_is_held(
    opened: Callable[..., Opened], plane: TensorPlane
) -> None:
    request = opened()
    await request.session.put(SOUND, sound(MIB))
    request.session.finish(EngineResult())

    data, _ = request.take()

    assert isinstance(data, Data)
    (output,) = data.outputs
    ref = output.payload.content
    assert isinstance(ref, TensorRef)
    assert (await fetched(plane, ref)).data == tensor(MIB).data
    assert request.acceptor.state(ONE) is RequestState.HELD
    assert plane.statistics().leases == 1


async def test_a_small_tensor_leaves_by_value_and_owns_its_bytes(
    opened: Callable[..., Opened], plane: TensorPlane
) -> None:
    request = opened()
    buffer = bytearray(b"12")
    shown = Tensor(header=tensor(2).header, data=memoryview(buffer))
    payload = Payload(kind=PayloadKind.WAVEFORM, content=shown)
    request.session.emit(SOUND, payload)
    await request.session.put(SOUND, payload)

    buffer[:] = b"xx"

    contents = [output.payload.content for output in request.take_data()]
    assert [content.data for content in contents if isinstance(content, Tensor)] == [b"12"] * 2
    assert plane.statistics().leases == 0


def test_emitting_a_large_tensor_is_a_mistake_of_the_engine(
    opened: Callable[..., Opened],
) -> None:
    with pytest.raises(ValueError, match="publish it"):
        opened().session.emit(SOUND, sound(INLINE_LIMIT + 1))


async def test_an_error_takes_back_what_was_not_sent_and_ends_the_leases(
    opened: Callable[..., Opened], plane: TensorPlane
) -> None:
    request = opened(credit=1)
    await request.session.put(SOUND, sound(MIB))
    assert len(request.take()) == 1
    request.say("never sent")

    request.session.finish(EngineFailed("broke"))

    (error,) = request.take()
    assert isinstance(error, Error)
    assert error.error.message == "broke"
    assert plane.statistics().leases == 0
    assert request.acceptor.state(ONE) is None


async def test_put_waits_for_credit_and_emit_does_not(opened: Callable[..., Opened]) -> None:
    request = opened(credit=1)
    await request.session.put(SAID, text_output("a").payload)
    request.take_data()
    await request.session.put(SAID, text_output("b").payload)
    waiting = asyncio.create_task(request.session.put(SAID, text_output("d").payload))
    await asyncio.sleep(0)
    request.say("c")
    assert not waiting.done()

    request.grant(1)
    await waiting

    assert texts(request.take_data()) == [("text", 0, "bcd")]


async def test_put_waits_for_a_write_once_a_frame_is_full(opened: Callable[..., Opened]) -> None:
    """Else an engine that never gives way would fill the memory, whatever the credit."""
    request = opened(credit=100)
    for _ in range(OUTPUTS_PER_FRAME):
        await asyncio.wait_for(request.session.put(SOUND, sound(4)), 1)
    waiting = asyncio.create_task(request.session.put(SOUND, sound(4)))
    await asyncio.sleep(0)
    assert not waiting.done()

    assert len(request.take_data()) == OUTPUTS_PER_FRAME

    await waiting


async def test_a_final_answer_never_waits_for_credit(opened: Callable[..., Opened]) -> None:
    request = opened(credit=0, delivery=Delivery.FINAL)

    for _ in range(3):
        await asyncio.wait_for(request.session.put(SAID, text_output("a").payload), 1)


async def test_inputs_arrive_in_order_with_their_tensors_at_hand(
    opened: Callable[..., Opened], plane: TensorPlane
) -> None:
    published = await plane.publish(tensor(MIB), owner="somebody", deadline=open_frame(1).deadline)
    held = Output(name=SOUND, payload=Payload(kind=PayloadKind.WAVEFORM, content=published))
    request = opened(text_output("a"), held, text_output("b"))

    engine_request = await request.session.fetch_inputs({})

    assert engine_request.inputs[SAID] == (text_output("a").payload, text_output("b").payload)
    assert [sound.data for sound in engine_request.tensors(SOUND)] == [tensor(MIB).data]
    assert engine_request.id == request.session.frame.request_id
    assert engine_request.deadline == request.session.frame.deadline


async def test_a_lost_input_is_an_error(opened: Callable[..., Opened]) -> None:
    with pytest.raises(TensorLost):
        await opened(reference()).session.fetch_inputs({})


async def test_times_add_up(opened: Callable[..., Opened]) -> None:
    request = opened()
    await request.session.fetch_inputs({})
    request.say("a")
    request.session.finish(EngineResult())

    usage = request.session.usage
    assert usage.queue_us >= 0
    assert 0 <= usage.first_output_us <= usage.run_us


async def test_a_request_that_never_reached_the_engine_took_no_time_there(
    opened: Callable[..., Opened],
) -> None:
    request = opened()

    request.session.finish(EngineFailed("the queue was full"))

    assert (request.session.usage.run_us, request.session.usage.first_output_us) == (0, 0)
