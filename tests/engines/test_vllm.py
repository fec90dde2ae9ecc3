"""Text generation: right, the same in company, cancellable, and clear about what it refuses."""

import asyncio
import os
import threading
from typing import Any

import pytest

from engines.conftest import CONTEXT
from fakes.engine_io import RecordedOutputs, conversation, engine_request, engine_spec, user_message
from omnistage_common.errors import InvalidRequest, InvalidWeights, SetupError
from omnistage_common.payloads import ImagePart, Message, Parameters, PayloadKind, TextPart
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, FinishReason, Outputs
from omnistage_stage.engines.vllm import VllmEngine
from omnistage_stage.engines.vllm.core import VllmCore, model_runner

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTIONS = (
    "What colour is the sky?",
    "Name a fruit.",
    "Count to five.",
    "Who wrote Hamlet?",
    "What is two and two?",
    "Say hello.",
    "Name a planet.",
    "What is water?",
)


def ask(question: str, **parameters: Any) -> EngineRequest:
    """A request that is answered greedily unless it says otherwise."""
    return engine_request(
        {"conversation": (conversation(user_message(question)),)},
        Parameters(**({"temperature": 0.0, "max_tokens": 24} | parameters)),
    )


async def answer(writer: VllmEngine, question: str, **parameters: Any) -> tuple[str, EngineResult]:
    outputs = RecordedOutputs()
    result = await writer.run(ask(question, **parameters), outputs)
    return outputs.text, result


def unfinished(writer: VllmEngine) -> int:
    """Requests that vLLM itself says it has."""
    core = writer._steps._core
    assert isinstance(core, VllmCore)
    return int(core._engine.get_num_unfinished_requests())


class Watched(RecordedOutputs):
    """Says when the first piece has come."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    def emit(self, *arguments: Any, **named: Any) -> None:
        """Keeps an output."""
        super().emit(*arguments, **named)
        self.begun.set()


async def test_text_comes_in_deltas(
    writer: VllmEngine,
) -> None:
    outputs = RecordedOutputs()
    result = await writer.run(ask("Count to five.", max_tokens=8, ignore_eos=True), outputs)

    assert len(outputs.pieces) > 1
    assert {name for name, _, _ in outputs.pieces} == {"text"}
    assert result.finish_reason is FinishReason.LENGTH
    assert result.output_tokens == 8
    assert result.input_tokens > 3


async def test_eight_at_once_get_what_each_gets_alone(writer: VllmEngine) -> None:
    alone = [await answer(writer, question) for question in QUESTIONS]
    together = await asyncio.gather(*(answer(writer, question) for question in QUESTIONS))

    assert together == alone
    assert writer.active == 0


async def test_a_cancelled_request_leaves_nothing_and_the_next_one_works(
    writer: VllmEngine,
) -> None:
    before, _ = await answer(writer, "Name a fruit.")
    outputs = Watched()
    request = ask("Tell me a long story.", max_tokens=400, ignore_eos=True)
    task = asyncio.create_task(writer.run(request, outputs))
    await outputs.begun.wait()
    assert writer.active == unfinished(writer) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert writer.active == 0
    pieces = len(outputs.pieces)
    assert (await answer(writer, "Name a fruit."))[0] == before
    assert len(outputs.pieces) == pieces


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_requests_cancelled_at_any_moment_leave_nothing(
    writer: VllmEngine, turns: int
) -> None:
    watched = [Watched() for _ in QUESTIONS]
    tasks = [
        asyncio.create_task(writer.run(ask(question, max_tokens=200, ignore_eos=True), outputs))
        for question, outputs in zip(QUESTIONS, watched, strict=True)
    ]
    await watched[0].begun.wait()
    late = [asyncio.create_task(writer.run(ask("Later."), RecordedOutputs())) for _ in range(4)]
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in (*tasks, *late):
        task.cancel()
    await asyncio.wait((*tasks, *late))

    assert all(task.cancelled() for task in (*tasks, *late))
    assert writer.active == unfinished(writer) == 0


async def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(writer: VllmEngine) -> None:
    whole, _ = await answer(writer, "What is the capital of France?")
    assert "capital" in whole
    text, result = await answer(writer, "What is the capital of France?", stop=("France",))

    assert text == whole.partition("France")[0]
    assert result.finish_reason is FinishReason.STOP


async def test_a_seed_repeats_an_answer_and_another_seed_does_not(writer: VllmEngine) -> None:
    def sampled(seed: int) -> dict[str, Any]:
        return {"temperature": 1.5, "seed": seed, "max_tokens": 24, "ignore_eos": True}

    first, again, other = [
        (await answer(writer, "Tell me a story.", **sampled(seed)))[0] for seed in (7, 7, 8)
    ]

    assert first == again != other


async def test_an_answer_ends_where_the_context_does(writer: VllmEngine) -> None:
    _, result = await answer(writer, "word " * 400, max_tokens=CONTEXT, ignore_eos=True)

    assert result.finish_reason is FinishReason.LENGTH
    assert result.input_tokens + result.output_tokens == CONTEXT


async def test_messages_longer_than_the_context_are_refused_with_the_counts(
    writer: VllmEngine,
) -> None:
    with pytest.raises(InvalidRequest, match=rf"takes at most {CONTEXT - 1}") as refused:
        await answer(writer, "word " * (CONTEXT + 1))
    assert refused.value.field == "messages"
    assert writer.active == 0


async def test_a_template_that_asks_for_text_only_has_nothing_else_collected(
    writer: VllmEngine,
) -> None:
    core = writer._steps._core
    assert isinstance(core, VllmCore)
    assert core._hidden is None
    assert not model_runner(core._engine).model._forward_hooks


async def test_a_model_of_text_refuses_images(writer: VllmEngine) -> None:
    message = Message(role="user", parts=(TextPart(text="What is this?"), ImagePart(index=0)))

    with pytest.raises(InvalidRequest, match="takes no images") as refused:
        await writer.run(
            engine_request({"conversation": (conversation(message),)}), RecordedOutputs()
        )
    assert refused.value.field == "messages"


async def test_audio_without_a_transcript_is_refused(writer: VllmEngine) -> None:
    request = engine_request({"conversation": (conversation(user_message("Listen:", 0)),)})
    outputs: Outputs = RecordedOutputs()

    with pytest.raises(InvalidRequest, match="audio input 0") as refused:
        await writer.run(request, outputs)
    assert refused.value.field == "messages"


async def test_the_answer_may_be_empty_but_is_never_missing(writer: VllmEngine) -> None:
    outputs = RecordedOutputs()
    whole, _ = await answer(writer, "Say hello.")
    await writer.run(ask("Say hello.", stop=(whole[0],)), outputs)

    assert [payload.content for payload in outputs.payloads] == [""]


async def test_one_kernel_thread_is_the_default(writer: VllmEngine) -> None:
    assert writer.active == 0
    assert os.environ["OMP_NUM_THREADS"] == "1"


async def test_a_folder_without_a_model_is_refused_and_leaves_no_thread(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = tmp_path_factory.mktemp("empty")
    before = set(threading.enumerate())
    engine = VllmEngine(engine_spec({"text": PayloadKind.TEXT}, model=model.as_uri()))

    with pytest.raises(InvalidWeights, match=r"no config\.json"):
        await engine.load()
    await engine.close()

    assert set(threading.enumerate()) <= before


async def test_a_model_that_vllm_refuses_is_a_setup_error_in_its_words(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = tmp_path_factory.mktemp("odd")
    (model / "config.json").write_text('{"model_type": "no-such-model"}', encoding="utf-8")
    engine = VllmEngine(engine_spec({"text": PayloadKind.TEXT}, model=model.as_uri()))

    with pytest.raises(SetupError, match="no-such-model"):
        await engine.load()
    await engine.close()
