"""The split talker says what Qwen2.5-Omni's own `generate` says, however its text arrives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from msgspec import structs

from fakes.qwen2_5_omni import (
    Spoken,
    ask,
    load_model,
    rows_payload,
    speak,
    tokens_payload,
    with_speakers,
    write_model,
)
from fakes.talking import (
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
from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    InvalidWeights,
    SetupError,
    TensorLost,
)
from omnistage_common.ids import OutputName
from omnistage_common.payloads import Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineRequest, FinishReason
from omnistage_stage.engines.torch import TorchEngine
from omnistage_stage.engines.torch.conversion import from_payload, to_payload

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT, MEDIUM, LONG = 3, 7, 15
"""Words of questions."""
MEDIA: dict[str, tuple[str, ...]] = {
    "sound": ("audio",),
    "picture": ("image",),
    "both": ("audio", "image"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that has something to say."""
    return write_model(tmp_path_factory.mktemp("qwen2.5-omni"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """The whole model, monolithic."""
    torch.set_num_threads(1)
    return load_model(folder)


@pytest.fixture(scope="module")
def greedy(model: Any) -> dict[str, Spoken]:
    """What it says without sampling."""
    words = {"short": SHORT, "medium": MEDIUM, "long": LONG}
    return {name: speak(model, words=count) for name, count in words.items()} | {
        name: speak(model, words=MEDIUM, media=media) for name, media in MEDIA.items()
    }


@pytest.fixture(scope="module")
def sampled(model: Any) -> dict[int, Spoken]:
    """What it says with a seed."""
    return {
        seed: speak(model, words=SHORT + 4 * seed, seed=seed, sampled=True, media=media)
        for seed, media in enumerate(((), *MEDIA.values()))
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
    return structs.replace(
        whole,
        inputs={},
        streams={name: arrive(list(pieces)) for name, pieces in whole.inputs.items()},
    )


@pytest.mark.parametrize("question", ["short", "medium", "long", *MEDIA])
async def test_greedy_codes_are_those_of_the_whole_model(
    speaker: TorchEngine, greedy: dict[str, Spoken], question: str
) -> None:
    assert torch.equal(await codes_of(speaker, ask(greedy[question])), greedy[question].codes)


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
    assert not torch.equal(first[:6], other[:6])


@pytest.mark.parametrize("interleaving", range(4))
async def test_four_at_once_say_what_each_says_alone_in_any_interleaving(
    speaker: TorchEngine, greedy: dict[str, Spoken], interleaving: int
) -> None:
    chance = dice(interleaving)

    async def late(spoken: Spoken) -> Any:
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        return await codes_of(speaker, streamed(spoken, lambda pieces: in_bursts(pieces, chance)))

    questions = chance.sample(list(greedy.values()), 4)
    heard = await asyncio.gather(*(late(spoken) for spoken in questions))

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


async def test_speech_begins_with_the_first_row_and_waits_for_the_next(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = greedy["long"]
    steps: asyncio.Queue[None] = asyncio.Queue()

    async def one_by_one(pieces: list[Payload]) -> AsyncIterator[Payload]:
        for piece in pieces:
            if piece.kind is PayloadKind.HIDDEN_STATES and len(pieces) > 1:
                await steps.get()
            yield piece

    heard = Listener()
    running = asyncio.create_task(speaker.run(streamed(spoken, one_by_one), heard))
    for codes in range(1, 4):
        steps.put_nowait(None)
        await heard.has(codes)
    assert torch.equal(heard.codes, spoken.codes[:3])
    # Another request runs from beginning to end; the one that waits says nothing meanwhile.
    await codes_of(speaker, ask(greedy["short"]))
    assert len(heard.pieces) == 3
    for _ in spoken.answer:
        steps.put_nowait(None)
    await running

    assert torch.equal(heard.codes, spoken.codes)


async def test_a_cancelled_request_frees_its_place_and_the_next_is_right(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    heard = Listener()
    running = asyncio.create_task(speaker.run(streamed(greedy["long"], stopping_short), heard))
    await heard.has(4)
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


async def test_another_voice_says_it_otherwise_and_as_the_whole_model_does(
    speaker: TorchEngine, model: Any
) -> None:
    other = speak(model, words=SHORT, voice="Ethan")

    assert torch.equal(await codes_of(speaker, ask(other, voice="ethan")), other.codes)
    assert not torch.equal(await codes_of(speaker, ask(other)), other.codes)


async def test_an_unknown_voice_is_refused_with_those_there_are(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    with pytest.raises(InvalidRequest, match="'alloy'; this model has Chelsie, Ethan") as refused:
        await codes_of(speaker, ask(greedy["short"], voice="alloy"))
    assert refused.value.field == "voice"


async def test_a_default_voice_that_the_checkpoint_lacks_stops_the_stage(folder: Path) -> None:
    with pytest.raises(SetupError, match="has Chelsie, Ethan") as refused:
        async with talking(folder, voice="alloy"):
            pass
    assert refused.value.field == "engineArgs.voice"


async def test_speech_ends_at_the_bound_and_says_so(
    folder: Path, greedy: dict[str, Spoken]
) -> None:
    spoken = greedy["long"]
    async with talking(folder, do_sample=False, max_frames=3) as engine:
        heard = Listener()
        result = await engine.run(ask(spoken), heard)

    assert (result.finish_reason, result.output_tokens) == (FinishReason.LENGTH, 3)
    assert result.input_tokens == len(spoken.prompt) + 2
    assert torch.equal(heard.codes, spoken.codes[:3])


async def test_the_code_that_ends_speech_is_none_of_it(folder: Path, model: Any) -> None:
    async with talking(folder, max_frames=200) as engine:
        for seed in range(40):
            heard = Listener()
            spoken = speak(model, words=SHORT, seed=seed, sampled=True, codes=200)
            result = await engine.run(ask(spoken, seed=seed), heard)
            assert torch.equal(heard.codes, spoken.codes)
            if result.finish_reason is FinishReason.STOP:
                break
    config = model.config.talker_config

    assert result.finish_reason is FinishReason.STOP
    assert not torch.isin(
        torch.tensor([config.tts_codec_end_token_id, config.tts_codec_pad_token_id]), heard.codes
    ).any()


async def test_a_lost_producer_is_the_requests_own_error(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    with pytest.raises(TensorLost, match="thinker is gone"):
        await codes_of(speaker, streamed(greedy["short"], breaking_off))
    assert speaker.active == 0


async def test_an_answer_without_text_is_an_error_and_never_silence(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = structs.replace(
        greedy["short"],
        answer=greedy["short"].answer[-1:],
        answer_hidden=greedy["short"].answer_hidden[:0],
    )

    for request in (ask(spoken), without(ask(spoken), "hidden_states")):
        with pytest.raises(EngineFailed, match="nothing to speak"):
            await codes_of(speaker, request)


async def test_tokens_and_hidden_states_that_do_not_belong_together_are_an_error(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = structs.replace(greedy["short"], answer=greedy["short"].answer[:-1])

    with pytest.raises(EngineFailed, match="one less of these"):
        await codes_of(speaker, ask(spoken))


@pytest.mark.parametrize("port", ["prompt_tokens", "tokens", "prompt_hidden_states"])
async def test_an_input_that_the_pipeline_does_not_bring_is_named(
    speaker: TorchEngine, greedy: dict[str, Spoken], port: str
) -> None:
    with pytest.raises(EngineFailed, match=rf"needs `{port}`"):
        await codes_of(speaker, without(ask(greedy["short"]), port))


async def test_a_prompt_with_pictures_needs_their_positions(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    with pytest.raises(EngineFailed, match="prompt_positions"):
        await codes_of(speaker, without(ask(greedy["picture"]), "prompt_positions"))
    # Sounds and text alone do not.
    for question in ("short", "sound"):
        request = without(ask(greedy[question]), "prompt_positions")
        assert torch.equal(await codes_of(speaker, request), greedy[question].codes)


async def test_pictures_stand_where_the_thinker_saw_them(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = greedy["picture"]
    flat = torch.arange(len(spoken.prompt)).unsqueeze(1).expand(-1, 3)

    moved = await codes_of(speaker, ask(structs.replace(spoken, positions=flat)))
    assert not torch.equal(moved, spoken.codes)


async def test_a_prompt_that_goes_on_after_the_answer_began_is_an_error(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    spoken = greedy["short"]
    begun = asyncio.Event()

    async def cut(pieces: list[Payload]) -> AsyncIterator[Payload]:
        for piece in pieces:
            yield piece
        if pieces == list(whole.inputs[OutputName("prompt_tokens")]):
            await begun.wait()
            yield tokens_payload([5])

    whole = ask(spoken)
    heard = Listener()
    request = structs.replace(
        whole,
        inputs={},
        streams={name: cut(list(pieces)) for name, pieces in whole.inputs.items()},
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
        ("tokens", torch.tensor([5, 1 << 40])),
        ("prompt_tokens", torch.tensor([-1])),
        ("hidden_states", torch.zeros((3, 63))),
        ("prompt_hidden_states", torch.zeros((3, 64), dtype=torch.long)),
        ("prompt_positions", torch.zeros((3, 2), dtype=torch.long)),
    ],
)
async def test_rows_of_another_kind_are_refused_and_nobody_else_suffers(
    speaker: TorchEngine, greedy: dict[str, Spoken], port: str, rows: Any
) -> None:
    spoken = greedy["short"]
    request = ask(spoken)
    inputs = {**request.inputs, OutputName(port): (to_payload(rows, PayloadKind.TOKENS),)}

    with pytest.raises(EngineFailed, match=rf"`{port}`"):
        await codes_of(speaker, structs.replace(request, inputs=inputs))
    assert torch.equal(await codes_of(speaker, ask(spoken)), spoken.codes)


async def test_hidden_states_may_be_of_a_coarser_type(
    speaker: TorchEngine, greedy: dict[str, Spoken]
) -> None:
    request = ask(greedy["short"])
    coarse = {
        name: tuple(
            rows_payload(from_payload(piece).to(torch.bfloat16))
            if piece.kind is PayloadKind.HIDDEN_STATES
            else piece
            for piece in pieces
        )
        for name, pieces in request.inputs.items()
    }

    assert len(await codes_of(speaker, structs.replace(request, inputs=coarse)))


VOICE = {"bos_token": 60, "cond": torch.zeros(1, 32), "ref_mel": torch.zeros(1, 100, 80)}


@pytest.mark.parametrize(
    ("speakers", "message"),
    [
        (None, "has no spk_dict.pt"),
        (b"no zip file", "spk_dict.pt cannot be read"),
        ({}, "holds no speakers"),
        ({"Eve": {**VOICE, "bos_token": "60"}}, "spk_dict.pt: Eve has no bos_token"),
        ({"Eve": {**VOICE, "cond": torch.zeros(32)}}, "spk_dict.pt: Eve has no cond"),
        ({"Eve": {"bos_token": 60, "cond": VOICE["cond"]}}, "spk_dict.pt: Eve has no ref_mel"),
        ({"Eve": {**VOICE, "bos_token": 1 << 40}}, "spk_dict.pt: Eve's bos_token"),
    ],
)
async def test_speakers_that_are_missing_or_broken_are_named(
    folder: Path, tmp_path: Path, speakers: Any, message: str
) -> None:
    with pytest.raises(InvalidWeights, match=message) as refused:
        async with talking(with_speakers(folder, tmp_path, speakers)):
            pass
    assert refused.value.field == "model"


async def test_the_first_speaker_speaks_where_the_usual_one_is_missing(
    folder: Path, tmp_path: Path, greedy: dict[str, Spoken]
) -> None:
    async with talking(with_speakers(folder, tmp_path, {"Eve": VOICE})) as engine:
        unnamed = await codes_of(engine, ask(greedy["short"], seed=1))
        named = await codes_of(engine, ask(greedy["short"], seed=1, voice="Eve"))

    assert torch.equal(unnamed, named)
