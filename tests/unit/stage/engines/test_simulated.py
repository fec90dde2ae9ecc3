"""The simulated engine: what it emits, what a step costs, and how it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fakes.engine_io import (
    RecordedOutputs,
    conversation,
    engine_request,
    engine_spec,
    user_message,
)
from omnistage_common.errors import EngineFailed, SetupError
from omnistage_common.links.frames import FinishReason
from omnistage_common.payloads import INLINE_LIMIT, Parameters, PayloadKind
from omnistage_stage.engines.protocol import EngineResult
from omnistage_stage.engines.simulated import SimulatedEngine

WORDS = {"text": {"when": "step", "text": "la "}}
TEXT = {"text": PayloadKind.TEXT}
MakeEngine = Callable[..., SimulatedEngine]


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """Makes engines that are closed after the test, which must leave no task of theirs."""
    made: list[SimulatedEngine] = []

    def make(produces: dict[str, PayloadKind] | None = None, **args: Any) -> SimulatedEngine:
        made.append(SimulatedEngine(engine_spec(TEXT if produces is None else produces, **args)))
        return made[-1]

    yield make
    for engine in made:
        await engine.close()
    assert asyncio.all_tasks() - {asyncio.current_task()} == set()


async def loaded(engine: SimulatedEngine) -> SimulatedEngine:
    """The engine, ready to run."""
    await engine.load()
    await engine.probe()
    return engine


async def answer(
    engine: SimulatedEngine, max_tokens: int | None = None
) -> tuple[RecordedOutputs, EngineResult]:
    """What one request yields."""
    outputs = RecordedOutputs()
    request = engine_request(
        {"conversation": (conversation(user_message("one two", 0, " three ")),)},
        Parameters(max_tokens=max_tokens),
    )
    return outputs, await engine.run(request, outputs)


async def test_every_step_emits_a_piece(make_engine: MakeEngine) -> None:
    outputs, result = await answer(await loaded(make_engine(steps=3, outputs=WORDS)))

    assert outputs.text == "la la la "
    assert result == EngineResult(
        finish_reason=FinishReason.LENGTH, input_tokens=3, output_tokens=3
    )


@pytest.mark.parametrize("max_tokens", [1, 7])
async def test_a_request_may_ask_for_another_number_of_steps(
    make_engine: MakeEngine, max_tokens: int
) -> None:
    engine = await loaded(make_engine(steps=3, outputs=WORDS))

    outputs, result = await answer(engine, max_tokens)

    assert len(outputs.pieces) == result.output_tokens == max_tokens


async def test_no_tokens_are_no_steps(make_engine: MakeEngine) -> None:
    outputs, result = await answer(await loaded(make_engine(steps=3, outputs=WORDS)), 0)

    assert outputs.pieces == []
    assert result.output_tokens == 0


async def test_tensors_have_the_shape_that_was_asked_for(make_engine: MakeEngine) -> None:
    kinds = {"codes": PayloadKind.CODEC_FRAMES, "audio": PayloadKind.WAVEFORM}
    shapes = {
        "codes": {"when": "step", "element_type": "int64", "shape": [1, 8]},
        "audio": {"element_type": "int16", "shape": [48000], "rate_hz": 24000},
    }
    outputs, _ = await answer(await loaded(make_engine(kinds, steps=2, outputs=shapes)))

    assert [name for name, _, _ in outputs.pieces] == ["codes", "codes", "audio"]
    assert [payload.kind for payload in outputs.payloads][1:] == [*kinds.values()]
    codes, _, audio = outputs.tensors
    assert (codes.header.shape, len(codes.data)) == ((1, 8), 64)
    assert (audio.header.rate_hz, len(audio.data)) == (24000, 96000)


async def test_an_output_at_the_end_alone_is_no_generation(make_engine: MakeEngine) -> None:
    outputs, result = await answer(
        await loaded(make_engine(steps=5, outputs={"text": {"text": "once"}}))
    )

    assert outputs.text == "once"
    assert result.finish_reason is FinishReason.NONE


async def test_a_step_serves_every_request_at_once(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(steps=4, step_seconds=0.01, outputs=WORDS))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await answer(engine)
    alone = loop.time() - began

    began = loop.time()
    answers = await asyncio.gather(*(answer(engine) for _ in range(20)))
    together = loop.time() - began

    assert [outputs.text for outputs, _ in answers] == ["la " * 4] * 20
    assert together < alone * 10


async def test_steps_without_cost_are_over_in_a_few_turns(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(steps=10_000, outputs=WORDS))
    task = asyncio.create_task(answer(engine))

    for _ in range(5):
        await asyncio.sleep(0)

    assert task.done()


async def test_it_says_how_far_it_is_when_it_shall(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(steps=3, outputs=WORDS, reports_progress=True))
    told, _ = await answer(engine)
    silent, _ = await answer(await loaded(make_engine(steps=3, outputs=WORDS)))

    assert told.steps == [(1, 3), (2, 3), (3, 3)]
    assert silent.steps == []


async def test_a_cancelled_request_leaves_and_the_others_go_on(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(steps=3, step_seconds=0.01, outputs=WORDS))
    unwanted = RecordedOutputs()
    task = asyncio.create_task(engine.run(engine_request({}), unwanted))
    wanted = asyncio.create_task(answer(engine))
    await asyncio.sleep(0)

    task.cancel()
    await asyncio.wait((task,))
    outputs, _ = await wanted

    assert task.cancelled()
    assert unwanted.pieces == []
    assert outputs.text == "la " * 3


async def test_it_fails_at_the_step_it_was_told_to_and_only_there(
    make_engine: MakeEngine,
) -> None:
    engine = await loaded(make_engine(steps=5, fail_after_steps=2, outputs=WORDS))

    with pytest.raises(EngineFailed, match="at step 2"):
        await answer(engine)

    outputs, _ = await answer(engine, max_tokens=2)
    assert outputs.text == "la la "
    await engine.probe()


async def test_the_probe_fails_unless_the_steps_run(make_engine: MakeEngine) -> None:
    engine = make_engine(outputs=WORDS)
    with pytest.raises(EngineFailed):
        await engine.probe()
    await loaded(engine)
    await engine.close()
    with pytest.raises(EngineFailed):
        await engine.probe()


async def test_an_engine_that_was_never_loaded_can_be_closed(make_engine: MakeEngine) -> None:
    await make_engine(outputs=WORDS).close()


async def test_loading_takes_as_long_as_it_shall(make_engine: MakeEngine) -> None:
    engine = make_engine(load_seconds=30, outputs=WORDS)
    loading = asyncio.create_task(engine.load())
    await asyncio.sleep(0)

    assert not loading.done()
    loading.cancel()
    await asyncio.wait((loading,))


@pytest.mark.parametrize("outputs", [{}, {"text": {}, "more": {}}, {"other": {}}])
def test_outputs_must_be_those_of_the_template(outputs: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="outputs of stage tested") as refused:
        SimulatedEngine(engine_spec(TEXT, outputs=outputs))

    assert refused.value.field == "engineArgs.outputs"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"sise": 3}, "sise"),
        ({"steps": "many"}, "steps"),
        ({"steps": 0}, "steps"),
        ({"step_seconds": -1.0}, "step_seconds"),
        ({"load_seconds": -1.0}, "load_seconds"),
        ({"fail_after_steps": -1}, "fail_after_steps"),
        ({"outputs": {"text": {"when": "sometimes"}}}, "outputs"),
        ({"outputs": {"text": {"shape": [-1]}}}, "outputs"),
        ({"outputs": {"text": {"rate_hz": -1}}}, "outputs"),
        ({"outputs": {"text": {"colour": "red"}}}, "outputs"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(SetupError, match=rf"engineArgs\.{field}"):
        SimulatedEngine(engine_spec(TEXT, **({"outputs": WORDS} | arguments)))


def test_a_tensor_too_large_for_a_step_is_refused_before_anything_runs() -> None:
    outputs = {"text": {"when": "step", "shape": [INLINE_LIMIT + 1]}}

    with pytest.raises(SetupError, match="emit it with when: end"):
        SimulatedEngine(engine_spec(TEXT, outputs=outputs))
