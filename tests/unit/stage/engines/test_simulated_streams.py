"""The simulated engine in the place of stages that stream: one that follows, one that converts."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fakes.engine_io import RecordedOutputs, engine_request, engine_spec
from omnistage_common.errors import SetupError, StageUnavailable
from omnistage_common.payloads import ElementType, Payload, PayloadKind, Tensor, TensorHeader
from omnistage_stage.engines.protocol import EngineRequest
from omnistage_stage.engines.simulated import SimulatedEngine

CODES = {"element_type": "int64", "shape": [1, 4], "when": "step"}
SPEECH = {"element_type": "float32", "shape": [1], "rate_hz": 24000}
CONVERSION = {"input": "codes", "rows_per_step": 25, "rows_out": 1920}


@pytest.fixture
async def talker() -> AsyncIterator[SimulatedEngine]:
    """Makes four frames, none before its token."""
    async with AsyncExitStack() as stack:
        yield await started(
            stack,
            {"codes": PayloadKind.CODEC_FRAMES},
            steps=4,
            follows="tokens",
            outputs={"codes": CODES},
        )


@pytest.fixture
async def vocoder() -> AsyncIterator[SimulatedEngine]:
    """Makes 1920 samples of each frame."""
    async with AsyncExitStack() as stack:
        yield await started(
            stack,
            {"speech": PayloadKind.WAVEFORM},
            converts=CONVERSION,
            outputs={"speech": SPEECH},
        )


async def started(
    stack: AsyncExitStack, produces: dict[str, PayloadKind], **args: Any
) -> SimulatedEngine:
    """An engine that is closed with the stack."""
    engine = SimulatedEngine(engine_spec(produces, **args))
    stack.push_async_callback(engine.close)
    await engine.load()
    return engine


def rows(count: int, kind: PayloadKind = PayloadKind.TOKENS) -> Payload:
    """A tensor of so many rows."""
    header = TensorHeader(element_type=ElementType.INT64, shape=(count, 1))
    return Payload(kind=kind, content=Tensor(header=header, data=bytes(header.length)))


class Arrivals:
    """A stream that a test feeds."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Payload | Exception | None] = asyncio.Queue()

    def put(self, item: Payload | Exception | None) -> None:
        """A piece, an error, or None for the end."""
        self._items.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[Payload]:
        while (item := await self._items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


def request(port: str, arrivals: Arrivals, *first: Payload) -> EngineRequest:
    """A request whose port is fed by a test, after what was there before."""
    return engine_request({port: first} if first else {}, streams={port: aiter(arrivals)})


async def turns(count: int = 10) -> None:
    """Lets everything happen that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def samples(outputs: RecordedOutputs) -> Iterator[int]:
    """Rows of each tensor that was made."""
    return (tensor.header.shape[0] for tensor in outputs.tensors)


async def test_a_follower_makes_a_step_for_each_row_and_the_rest_at_the_end(
    talker: SimulatedEngine,
) -> None:
    arrivals, outputs = Arrivals(), RecordedOutputs()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(talker.run(request("tokens", arrivals), outputs))
        await turns()
        assert outputs.pieces == []
        arrivals.put(rows(1))
        await turns()
        assert len(outputs.pieces) == 1
        arrivals.put(rows(2))
        await turns()
        assert len(outputs.pieces) == 3
        arrivals.put(None)
    assert running.result().output_tokens == len(outputs.pieces) == 4


async def test_a_follower_of_what_is_all_there_does_not_wait(talker: SimulatedEngine) -> None:
    outputs = RecordedOutputs()
    await talker.run(engine_request({"tokens": (rows(1),)}), outputs)

    assert len(outputs.pieces) == 4


async def test_rows_that_come_after_the_last_step_are_not_waited_for(
    talker: SimulatedEngine,
) -> None:
    outputs = RecordedOutputs()
    async with asyncio.timeout(10):
        await talker.run(request("tokens", Arrivals(), rows(9)), outputs)

    assert len(outputs.pieces) == 4


async def test_a_stream_that_is_lost_ends_the_follower(talker: SimulatedEngine) -> None:
    arrivals = Arrivals()
    arrivals.put(rows(1))
    arrivals.put(StageUnavailable("thinker-0 was lost"))

    with pytest.raises(StageUnavailable, match="thinker-0"):
        await talker.run(request("tokens", arrivals), RecordedOutputs())
    assert not talker._jobs


async def test_one_that_waits_does_not_hold_up_the_others(talker: SimulatedEngine) -> None:
    waiting = asyncio.create_task(talker.run(request("tokens", Arrivals()), RecordedOutputs()))
    outputs = RecordedOutputs()
    await turns()
    await talker.run(engine_request({"tokens": (rows(1),)}), outputs)
    assert len(outputs.pieces) == 4

    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert not talker._jobs


async def test_a_converter_makes_rows_of_each_chunk_as_it_comes(vocoder: SimulatedEngine) -> None:
    arrivals, outputs = Arrivals(), RecordedOutputs()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(vocoder.run(request("codes", arrivals), outputs))
        arrivals.put(rows(2))
        await turns()
        assert list(samples(outputs)) == [2 * 1920]
        arrivals.put(rows(25))
        arrivals.put(None)
    assert list(samples(outputs)) == [2 * 1920, 25 * 1920]
    assert running.result().output_tokens == 27 * 1920
    assert {tensor.header.rate_hz for tensor in outputs.tensors} == {24000}


async def test_a_converter_takes_what_is_all_there_at_once(vocoder: SimulatedEngine) -> None:
    outputs = RecordedOutputs()
    await vocoder.run(engine_request({"codes": (rows(3), rows(4))}), outputs)

    assert list(samples(outputs)) == [7 * 1920]


async def test_nothing_to_convert_makes_nothing(vocoder: SimulatedEngine) -> None:
    outputs = RecordedOutputs()
    result = await vocoder.run(engine_request({}), outputs)

    assert (outputs.pieces, result.output_tokens) == ([], 0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"converts": {"input": "codes", "rows_per_step": 0}}, "engineArgs.converts"),
        ({"converts": {"rows_out": 3}}, "engineArgs.converts"),
        ({"follows": 3}, "engineArgs.follows"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(
    arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(SetupError) as refused:
        SimulatedEngine(
            engine_spec({"codes": PayloadKind.CODEC_FRAMES}, outputs={"codes": CODES}, **arguments)
        )
    assert refused.value.field == field
