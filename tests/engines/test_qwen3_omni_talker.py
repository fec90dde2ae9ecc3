"""The split talker says what Qwen3-Omni's own `generate` says, however its text arrives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from msgspec import structs

from fakes.engine_io import engine_request
from fakes.qwen3_omni import Spoken, ask, load_model, speak, tokens_payload, write_model
from fakes.talking import (
    FRAMES,
    Arrivals,
    Listener,
    breaking_off,
    codes_of,
    dice,
    in_bursts,
    slots,
    stopping_short,
    talking,
    without,
)
from omnistage_common.errors import EngineFailed, InvalidRequest, SetupError, TensorLost
from omnistage_common.ids import OutputName
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, FinishReason
from omnistage_stage.engines.torch import TorchEngine
from omnistage_stage.engines.torch.conversion import to_payload

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT, MEDIUM, LONG = 3, 7, 15
"""Words of questions."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that has something to say."""
    return write_model(tmp_path_factory.mktemp("qwen3-omni"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """The whole model, monolithic."""
    torch.set_num_threads(1)
    return load_model(folder)


@pytest.fixture(scope="module")
def greedy(model: Any) -> dict[str, Spoken]:
    """What it says without sampling."""
    stop = speak(model, words=LONG, frames=FRAMES).answer[4]
    return {
        "short": speak(model, words=SHORT, frames=FRAMES),
        "outlasted": speak(model, words=SHORT, thinker_max_new_tokens=5, frames=FRAMES),
        "stopped": speak(model, words=LONG, thinker_eos_token_id=stop, frames=FRAMES),
        "medium": speak(model, words=MEDIUM, frames=FRAMES),
        "long": speak(model, words=LONG, frames=FRAMES),
        "media": speak(model, words=MEDIUM, media=True, frames=FRAMES),
    }


@pytest.fixture(scope="module")
def sampled(model: Any) -> dict[int, Spoken]:
    """What it says with a seed."""
    return {
        seed: speak(model, words=SHORT + 4 * seed, seed=seed, media=seed == 2, frames=FRAMES)
        for seed in range(4)
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["exact", "padded"])
async def speaker(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[TorchEngine]:
    """Chooses the likeliest code."""
    async with talking(folder, do_sample=False, batching=request.param) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["exact", "padded"])
async def sampler(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[TorchEngine]:
    """Draws codes."""
    async with talking(folder, batching=request.param) as engine:
        yield engine


def streamed(spoken: Spoken, arrive: Arrivals, **parameters: Any) -> EngineRequest:
    """The same question, with its answer arriving piece by piece."""
    whole = ask(spoken, **parameters)
    streams = {
        name: arrive(list(pieces)) if name == "tokens" else in_bursts(list(pieces), dice(1))
        for name, pieces in whole.inputs.items()
    }
    return structs.replace(whole, inputs={}, streams=streams)


@pytest.mark.parametrize("question", ["short", "medium", "long", "media", "outlasted", "stopped"])
async def test_greedy_codes_are_those_of_the_whole_model(
    speaker: TorchEngine, greedy: dict[str, Spoken], question: str
) -> None:
    spoken = greedy[question]

    assert torch.equal(await codes_of(speaker, ask(spoken)), spoken.codes)


@pytest.mark.parametrize("seed", range(4))
async def test_sampled_codes_are_those_of_the_whole_model_with_that_seed(
    sampler: TorchEngine, sampled: dict[int, Spoken], seed: int
) -> None:
    assert torch.equal(await codes_of(sampler, ask(sampled[seed], seed=seed)), sampled[seed].codes)


async def test_a_seed_repeats_and_no_seed_does_not(
    sampler: TorchEngine, sampled: dict[int, Spoken]
) -> None:
    first, again = [await codes_of(sampler, ask(sampled[1], seed=1)) for _ in range(2)]
    other = await codes_of(sampler, ask(sampled[1]))

    assert torch.equal(first, again)
    assert not torch.equal(first[:4], other[:4])


@pytest.mark.parametrize("interleaving", range(4))
async def test_four_at_once_say_what_each_says_alone_in_any_interleaving(
    speaker: TorchEngine, greedy: dict[str, Spoken], interleaving: int
) -> None:
    async def late(spoken: Spoken, turns: int) -> Any:
        for _ in range(turns):
            await asyncio.sleep(0)
        bursts = dice(interleaving)
        return await codes_of(speaker, streamed(spoken, lambda pieces: in_bursts(pieces, bursts)))

    chance = dice(interleaving)
    questions = chance.sample(list(greedy.values()), 4)
    heard = await asyncio.gather(*(late(spoken, chance.randrange(60)) for spoken in questions))

    for codes, spoken in zip(heard, questions, strict=True):
        assert torch.equal(codes, spoken.codes)


async def test_four_that_sample_at_once_draw_what_each_draws_alone(
    sampler: TorchEngine, sampled: dict[int, Spoken]
) -> None:
    heard = await asyncio.gather(
        *(codes_of(sampler, ask(spoken, seed=seed)) for seed, spoken in sampled.items())
    )

    for codes, spoken in zip(heard, sampled.values(), strict=True):
        assert torch.equal(codes, spoken.codes)


async def test_speech_begins_with_the_first_token_and_waits_for_text(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = greedy["long"]
    steps: asyncio.Queue[int] = asyncio.Queue()

    async def one_by_one(pieces: list[Payload]) -> AsyncIterator[Payload]:
        for piece in pieces:
            await steps.get()
            yield piece

    heard = Listener()
    running = asyncio.create_task(speaker.run(streamed(spoken, one_by_one), heard))
    # The last of the tokens so far may be the last of all, and is then not spoken.
    for tokens, frames in ((1, 1), (2, 1), (3, 2), (4, 3)):
        steps.put_nowait(tokens)
        await heard.has(frames)
    assert torch.equal(heard.codes, spoken.codes[:3])
    # Another request runs from beginning to end; the one that waits says nothing meanwhile.
    await codes_of(speaker, ask(greedy["short"]))
    assert len(heard.pieces) == 3
    for _ in spoken.answer:
        steps.put_nowait(0)
    await running

    assert torch.equal(heard.codes, spoken.codes)


async def test_a_cancelled_request_frees_its_place_and_the_next_is_right(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    heard = Listener()
    running = asyncio.create_task(speaker.run(streamed(greedy["long"], stopping_short), heard))
    await heard.has(2)
    assert speaker.active == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert speaker.active == 0
    assert slots(speaker) == 0
    assert torch.equal(await codes_of(speaker, ask(greedy["medium"])), greedy["medium"].codes)


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 40])
async def test_requests_cancelled_at_any_moment_leave_nothing(
    speaker: TorchEngine, greedy: dict[str, Spoken], turns: int
) -> None:
    tasks = [
        asyncio.create_task(speaker.run(ask(spoken), Listener())) for spoken in greedy.values()
    ]
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert speaker.active == 0
    assert slots(speaker) == 0


async def test_more_requests_than_one_block_holds_positions_for(
    speaker: TorchEngine, model: Any
) -> None:
    spoken = speak(model, words=300, frames=FRAMES)

    assert torch.equal(await codes_of(speaker, ask(spoken)), spoken.codes)


async def test_another_voice_says_it_otherwise_and_as_the_whole_model_does(
    speaker: TorchEngine, model: Any, greedy: dict[str, Spoken]
) -> None:
    other = speak(model, words=SHORT, speaker="chelsie", frames=FRAMES)

    assert torch.equal(await codes_of(speaker, ask(other, voice="Chelsie")), other.codes)
    assert not torch.equal(await codes_of(speaker, ask(other)), other.codes)
    assert torch.equal(
        await codes_of(speaker, ask(greedy["short"], voice="ethan")), greedy["short"].codes
    )


async def test_an_unknown_voice_is_refused_with_those_there_are(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    with pytest.raises(InvalidRequest, match="'alloy'; this model has chelsie, ethan") as refused:
        await codes_of(speaker, ask(greedy["short"], voice="alloy"))
    assert refused.value.field == "voice"


async def test_a_default_voice_that_the_checkpoint_lacks_stops_the_stage(folder: Path) -> None:
    with pytest.raises(SetupError, match="has chelsie, ethan") as refused:
        async with talking(folder, voice="alloy"):
            pass
    assert refused.value.field == "engineArgs.voice"


async def test_speech_ends_at_the_bound_and_says_so(
    folder: Path, greedy: dict[str, Spoken]
) -> None:
    async with talking(folder, do_sample=False, max_frames=3, voice="ethan") as engine:
        heard = Listener()
        result = await engine.run(ask(greedy["long"]), heard)

    assert result == EngineResult(
        finish_reason=FinishReason.LENGTH, input_tokens=result.input_tokens, output_tokens=3
    )
    assert torch.equal(heard.codes, greedy["long"].codes[:3])


async def test_a_lost_producer_is_the_requests_own_error(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    with pytest.raises(TensorLost, match="thinker is gone"):
        await codes_of(speaker, streamed(greedy["short"], breaking_off))
    assert speaker.active == 0


@pytest.mark.parametrize("answer", [[], [7], ["stop"]])
async def test_an_answer_without_text_is_an_error_and_never_silence(
    speaker: TorchEngine, model: Any, greedy: dict[str, Spoken], answer: list[Any]
) -> None:
    tokens = [model.config.im_end_token_id if word == "stop" else word for word in answer]
    spoken = structs.replace(greedy["short"], answer=tokens)

    with pytest.raises(EngineFailed, match="nothing to speak"):
        await codes_of(speaker, ask(spoken))
    with pytest.raises(EngineFailed, match="nothing to speak"):
        await codes_of(speaker, streamed(spoken, lambda pieces: in_bursts(pieces, dice(0))))


@pytest.mark.parametrize("port", ["prompt_tokens", "tokens"])
async def test_an_input_that_the_pipeline_does_not_bring_is_named(
    speaker: TorchEngine, greedy: dict[str, Spoken], port: str
) -> None:
    with pytest.raises(EngineFailed, match=rf"needs `{port}`"):
        await codes_of(speaker, without(ask(greedy["short"]), port))


@pytest.mark.parametrize("port", ["prompt_hidden_states", "prompt_positions"])
async def test_a_prompt_with_pictures_needs_what_the_thinker_saw_of_them(
    speaker: TorchEngine, greedy: dict[str, Spoken], port: str
) -> None:
    with pytest.raises(EngineFailed, match=port):
        await codes_of(speaker, without(ask(greedy["media"]), port))
    # Text alone needs neither.
    alone = await codes_of(speaker, without(ask(greedy["short"]), port))
    assert torch.equal(alone, greedy["short"].codes)


async def test_pictures_stand_where_the_thinker_saw_them(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = greedy["media"]
    flat = torch.arange(len(spoken.prompt)).unsqueeze(1).expand(-1, 3)

    moved = await codes_of(speaker, ask(structs.replace(spoken, positions=flat)))
    assert not torch.equal(moved, spoken.codes)


async def test_a_prompt_that_goes_on_after_the_answer_began_is_an_error(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = greedy["short"]
    begun = asyncio.Event()

    async def cut() -> AsyncIterator[Payload]:
        yield tokens_payload(spoken.prompt)
        await begun.wait()
        yield tokens_payload([5])

    async def answer() -> AsyncIterator[Payload]:
        yield tokens_payload(spoken.answer)

    heard = Listener()
    request = structs.replace(
        engine_request({}, Parameters()),
        streams={OutputName("prompt_tokens"): cut(), OutputName("tokens"): answer()},
    )
    running = asyncio.create_task(speaker.run(request, heard))
    await heard.has(1)
    begun.set()
    with pytest.raises(EngineFailed, match="must have chunks of 1"):
        await running


@pytest.mark.parametrize(
    ("port", "rows"),
    [
        ("tokens", torch.zeros(3)),
        ("tokens", torch.zeros((3, 1), dtype=torch.long)),
        ("prompt_hidden_states", torch.zeros((3, 64), dtype=torch.long)),
        ("prompt_hidden_states", torch.zeros((3, 63))),
        ("prompt_positions", torch.zeros((3, 2), dtype=torch.long)),
        ("tokens", torch.tensor([5, -1])),
        ("prompt_tokens", torch.tensor([5, 1_000_000])),
    ],
)
async def test_rows_of_another_kind_are_refused(
    speaker: TorchEngine, greedy: dict[str, Spoken], port: str, rows: Any
) -> None:
    request = ask(greedy["short"])
    inputs = {**request.inputs, OutputName(port): (to_payload(rows, PayloadKind.TOKENS),)}

    with pytest.raises(EngineFailed, match=rf"`{port}` (came as torch|has ids from)"):
        await codes_of(speaker, structs.replace(request, inputs=inputs))
