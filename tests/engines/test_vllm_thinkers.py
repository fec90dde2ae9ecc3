"""Omni thinkers in vLLM make what the models' own code makes, alone, together and interrupted.

Token ids and the processor's inputs are equal. Hidden states are not bit for bit: vLLM's kernels
for attention, experts and norms add up in another order. On these checkpoints they differ by at most
1.3e-6 of the largest value.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio
import soxr

from fakes.engine_io import engine_request
from fakes.thinkers import (
    RATE_HZ,
    Answer,
    Ask,
    Floats,
    Monolith,
    StrictOutputs,
    answer_of,
    painting,
    recording,
    think,
    thinker,
)
from omnistage_common.errors import InvalidRequest
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    AudioPart,
    ElementType,
    ImagePart,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_stage.engines.protocol import FinishReason
from omnistage_stage.engines.vllm import VllmEngine
from omnistage_stage.engines.vllm.core import VllmCore
from omnistage_stage.engines.vllm.prompting import question_of, read_prompt

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOUND: Final = 4e-6
STEP_TOKENS: Final = 64
"""Tokens in one step of the engines here."""
CACHE_TOKENS: Final = 1536
"""Tokens that the engines' KV caches hold, about."""

ASKS: Final = {
    "text": Ask(parts=("Hello, how are you?",)),
    "recording": Ask(
        parts=(AudioPart(index=0), "What did you hear?"), audio=(recording(16_000, 1),)
    ),
    "odd recording": Ask(
        parts=("Listen:", AudioPart(index=0), "and speak."), audio=(recording(12_345, 2),)
    ),
    "picture": Ask(
        parts=("What is in this picture?", ImagePart(index=0)), images=(painting(64, 64, 3),)
    ),
    "everything": Ask(
        parts=(
            ImagePart(index=1),
            "then",
            AudioPart(index=1),
            ImagePart(index=0),
            AudioPart(index=0),
            "What is it?",
        ),
        audio=(recording(16_000, 4), recording(30_001, 5)),
        images=(painting(64, 64, 6), painting(50, 90, 7)),
    ),
}


@pytest.fixture(scope="module", params=["qwen3-omni", "qwen2.5-omni"])
def family(request: pytest.FixtureRequest) -> str:
    """Name of a tiny checkpoint."""
    return str(request.param)


@pytest.fixture(scope="module")
def monolith(family: str) -> Monolith:
    """The checkpoint in its own code."""
    return Monolith(family)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(family: str) -> AsyncIterator[VllmEngine]:
    """The checkpoint's thinker in vLLM."""
    layers = {"qwen3-omni": 3, "qwen2.5-omni": 2}[family]
    loaded = thinker(
        family,
        max_running=8,
        max_model_len=1024,
        max_num_batched_tokens=STEP_TOKENS,
        # Keys and values of two heads, which the kernels for CPUs make 32 wide.
        kv_cache_memory_bytes=CACHE_TOKENS * layers * 2 * 2 * 32 * 4,
    )
    await loaded.load()
    await loaded.probe()
    yield loaded
    await loaded.close()


def core_of(engine: VllmEngine) -> VllmCore:
    core = engine._steps._core
    assert isinstance(core, VllmCore)
    return core


def rows_held(engine: VllmEngine) -> int:
    hidden = core_of(engine)._hidden
    assert hidden is not None
    return hidden.requests


def difference(one: Floats, other: Floats) -> float:
    """The largest difference between two numbers, as a part of the largest number."""
    assert one.shape == other.shape
    return float(np.abs(one - other).max() / np.abs(other).max()) if one.size else 0.0


def assert_same(made: Answer, expected: Answer) -> None:
    assert made.prompt_tokens == expected.prompt_tokens
    assert made.prompt_positions == expected.prompt_positions
    assert made.tokens == expected.tokens
    assert difference(made.prompt_rows, expected.prompt_rows) <= BOUND
    assert difference(made.rows, expected.rows) <= BOUND


@pytest.mark.parametrize("ask", ASKS.values(), ids=list(ASKS))
async def test_an_answer_is_that_of_the_models_own_code(
    engine: VllmEngine, monolith: Monolith, ask: Ask
) -> None:
    made, result = await think(engine, ask)

    assert_same(made, monolith.think(ask))
    assert result.input_tokens == len(made.prompt_tokens) == len(made.prompt_rows)
    assert result.output_tokens == len(made.tokens) == len(made.rows) + 1 == 24


@pytest.mark.parametrize("samples", [400, 1_601, 12_319, 12_320, 12_321, 12_479])
async def test_recordings_of_any_length_give_the_features_of_the_models_own_processor(
    engine: VllmEngine, monolith: Monolith, samples: int
) -> None:
    ask = Ask(parts=(AudioPart(index=0),), audio=(recording(samples),))
    reader = core_of(engine).reader

    prompt = read_prompt(question_of(ask.request().inputs, reader.takes), reader)
    expected = monolith.inputs(ask)
    (item,) = prompt.engine_input["mm_kwargs"]["audio"]
    frames = int(expected["feature_attention_mask"].sum())

    assert prompt.tokens == expected["input_ids"][0].tolist()
    assert item.get_data()["input_audio_features"].equal(expected["input_features"][0, :, :frames])


async def test_four_at_once_get_what_each_gets_alone(engine: VllmEngine) -> None:
    asks = list(ASKS.values())[:4]
    alone = [(await think(engine, ask, max_tokens=8 + 9 * i))[0] for i, ask in enumerate(asks)]
    together = await asyncio.gather(
        *(think(engine, ask, max_tokens=8 + 9 * i) for i, ask in enumerate(asks))
    )

    for (made, _), expected in zip(together, alone, strict=True):
        assert_same(made, expected)


async def test_a_prompt_of_many_steps_delivers_its_rows_once_in_one_piece(
    engine: VllmEngine, monolith: Monolith
) -> None:
    ask = Ask(
        parts=("Listen. " * 40, AudioPart(index=0), "And now answer. " * 20),
        audio=(recording(40_000, 8),),
    )
    outputs = StrictOutputs()
    await engine.run(ask.request(), outputs)

    made = answer_of(outputs)
    assert len(made.prompt_tokens) > 3 * STEP_TOKENS
    assert_same(made, monolith.think(ask))
    names = [name for name, _, _ in outputs.pieces]
    assert names.count(OutputName("prompt_tokens")) == 1
    assert names.count(OutputName("prompt_hidden_states")) == 1


async def test_hidden_states_over_the_inline_limit_are_put(
    engine: VllmEngine, monolith: Monolith
) -> None:
    ask = Ask(parts=("word " * 150,))
    outputs = StrictOutputs()
    await engine.run(ask.request(max_tokens=3), outputs)

    assert len(answer_of(outputs).prompt_rows) > 256
    assert outputs.put_names == ["prompt_hidden_states"]
    assert_same(answer_of(outputs), monolith.think(ask, tokens=3))


async def test_a_row_goes_out_with_the_token_that_it_brought_forth(engine: VllmEngine) -> None:
    outputs = StrictOutputs()
    await engine.run(ASKS["text"].request(max_tokens=4), outputs)

    names = [name for name, _, _ in outputs.pieces if name != OutputName("text")]
    assert names == [
        "prompt_tokens",
        "prompt_positions",
        "prompt_hidden_states",
        "tokens",
        *(["hidden_states", "tokens"] * 3),
    ]


async def test_requests_that_were_computed_again_deliver_no_row_twice(engine: VllmEngine) -> None:
    asks = [Ask(parts=(f"{number} " * 20,)) for number in range(8)]
    tokens = 180
    with computed_rows(engine) as computed:
        together = await asyncio.gather(*(think(engine, ask, max_tokens=tokens) for ask in asks))

    needed = sum(result.input_tokens + result.output_tokens - 1 for _, result in together)
    assert sum(computed) > needed > CACHE_TOKENS
    assert all(len(made.tokens) == len(made.rows) + 1 == tokens for made, _ in together)
    for ask, (made, _) in list(zip(asks, together, strict=True))[-2:]:
        assert_same(made, (await think(engine, ask, max_tokens=tokens))[0])


class computed_rows:  # noqa: N801
    """Counts the rows that the model computes within the block."""

    def __init__(self, engine: VllmEngine) -> None:
        runner = core_of(engine)._engine.model_executor.driver_worker.worker.model_runner
        self._model = runner.model

    def __enter__(self) -> list[int]:
        rows: list[int] = []
        self._hook = self._model.register_forward_hook(
            lambda _module, _arguments, output: rows.append(len(output))
        )
        return rows

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


async def test_an_answer_of_one_token_has_rows_all_the_same_namely_none(
    engine: VllmEngine,
) -> None:
    made, result = await think(engine, ASKS["text"], max_tokens=1)

    assert result.output_tokens == len(made.tokens) == 1
    assert made.rows.shape == (0, made.prompt_rows.shape[1])


async def test_the_token_that_ends_an_answer_is_among_its_tokens(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = await think(engine, ASKS["text"])
    monkeypatch.setattr(core_of(engine), "_stop_tokens", [whole.tokens[5]])
    made, result = await think(engine, ASKS["text"], ignore_eos=False, temperature=0.0)

    written = whole.tokens.index(whole.tokens[5]) + 1
    assert result.finish_reason is FinishReason.STOP
    assert made.tokens == whole.tokens[:written]
    assert len(made.rows) == written - 1


@pytest.mark.parametrize("ask", [ASKS["text"], ASKS["picture"]], ids=["text", "picture"])
async def test_an_answer_ends_where_the_models_own_code_ends_it(
    engine: VllmEngine, monolith: Monolith, ask: Ask
) -> None:
    made, _ = await think(engine, ask, ignore_eos=False, max_tokens=60)

    assert made.tokens == monolith.think(ask, tokens=60, stops=True).tokens


async def test_a_seed_repeats_tokens_and_rows_and_another_seed_does_not(
    engine: VllmEngine,
) -> None:
    first, again, other = [
        (await think(engine, ASKS["recording"], temperature=1.5, seed=seed))[0]
        for seed in (7, 7, 8)
    ]

    assert_same(again, first)
    assert other.tokens != first.tokens


async def test_a_seed_gives_the_same_tokens_in_however_many_steps_its_prompt_is_read(
    engine: VllmEngine,
) -> None:
    asks = [Ask(parts=("Say it again. " * (3 + 9 * number),)) for number in range(4)]
    sampled: dict[str, Any] = {"temperature": 1.5, "seed": 11}
    alone = [(await think(engine, ask, **sampled))[0] for ask in asks]
    together = await asyncio.gather(*(think(engine, ask, **sampled) for ask in asks))

    assert len(alone[-1].prompt_tokens) > 2 * STEP_TOKENS
    assert [made.tokens for made, _ in together] == [made.tokens for made in alone]


async def test_a_cancelled_request_leaves_no_rows_behind(engine: VllmEngine) -> None:
    begun = asyncio.Event()

    class Watched(StrictOutputs):
        def emit(self, *arguments: Any, **named: Any) -> None:
            super().emit(*arguments, **named)
            if len(self.pieces) > 10:
                begun.set()

    cancelled = asyncio.create_task(
        engine.run(ASKS["everything"].request(max_tokens=200), Watched())
    )
    company = asyncio.create_task(think(engine, ASKS["picture"], max_tokens=40))
    async with asyncio.timeout(60):
        await begun.wait()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert engine.active == rows_held(engine) == 1

    made, _ = await company
    assert engine.active == rows_held(engine) == 0
    assert_same(made, (await think(engine, ASKS["picture"], max_tokens=40))[0])


async def test_a_recording_is_mixed_down_and_brought_to_the_rate_that_the_model_hears(
    engine: VllmEngine,
) -> None:
    stereo = (np.stack([recording(48_000, 1), recording(48_000, 2)], 1) * 32767).astype(np.int16)
    header = TensorHeader(element_type=ElementType.INT16, shape=stereo.shape, rate_hz=48_000)
    question = ASKS["recording"].request()
    inputs = {str(name): payloads for name, payloads in question.inputs.items()}
    payload = Payload(
        kind=PayloadKind.WAVEFORM, content=Tensor(header=header, data=stereo.tobytes())
    )
    outputs = StrictOutputs()
    await engine.run(
        engine_request({**inputs, "audio": (payload,)}, question.parameters),
        outputs,
    )
    mono = stereo.mean(1, dtype=np.float32) / 32768
    heard = Ask(parts=ASKS["recording"].parts, audio=(soxr.resample(mono, 48_000, RATE_HZ),))

    assert_same(answer_of(outputs), (await think(engine, heard))[0])


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            Ask(parts=(AudioPart(index=0),), audio=(recording(399),)),
            "audio input 0 has 399 samples",
        ),
        (Ask(parts=(ImagePart(index=0),), images=(painting(2, 500),)), "aspect ratio"),
        (Ask(parts=(AudioPart(index=0),), audio=(recording(2_000_000),)), "at most 1023"),
    ],
    ids=["too short", "too wide", "too long"],
)
async def test_what_the_model_cannot_perceive_is_the_clients_to_mend(
    engine: VllmEngine, ask: Ask, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        await think(engine, ask)

    assert refused.value.field == "messages"
    assert engine.active == 0
