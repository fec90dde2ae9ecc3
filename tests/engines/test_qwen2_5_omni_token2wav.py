"""The split vocoder makes the samples that Qwen2.5-Omni's own `generate` makes, early where it can."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from fakes.engine_io import RecordedOutputs, engine_request, engine_spec
from fakes.qwen2_5_omni import (
    codes_payload,
    load_model,
    some_codes,
    speak,
    vocode,
    with_speakers,
    write_model,
)
from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    InvalidWeights,
    SetupError,
    TensorLost,
)
from omnistage_common.ids import OutputName
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.torch import TorchEngine
from omnistage_stage.engines.torch.conversion import from_payload

pytestmark = pytest.mark.asyncio(loop_scope="module")

POINTS = 2
"""In time, for most of what is here: one step."""
ROUNDING = 2e-5
"""What samples computed early may differ by from the whole's, of at most 1; see `exactness.md`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that can be heard."""
    return write_model(tmp_path_factory.mktemp("qwen2.5-omni"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """The whole model, monolithic."""
    torch.set_num_threads(1)
    return load_model(folder)


@asynccontextmanager
async def vocoding(folder: Path, **arguments: Any) -> AsyncIterator[TorchEngine]:
    """A vocoder that is loaded."""
    engine = TorchEngine(
        engine_spec(
            {"speech": PayloadKind.WAVEFORM},
            model=folder.as_uri(),
            component="token2wav",
            **arguments,
        )
    )
    await engine.load()
    await engine.probe()
    yield engine
    assert engine.active == 0
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def usual(folder: Path) -> AsyncIterator[TorchEngine]:
    """A vocoder that does as `generate` does."""
    async with vocoding(folder) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quick(folder: Path) -> AsyncIterator[TorchEngine]:
    """A vocoder of one step."""
    async with vocoding(folder, num_steps=POINTS) as engine:
        yield engine


async def samples_of(
    engine: TorchEngine, codes: Any, outputs: RecordedOutputs | None = None, **parameters: Any
) -> Any:
    """What is heard of codes that are all there."""
    heard = outputs or RecordedOutputs()
    payloads = {"codes": (codes_payload(codes),)}
    await engine.run(engine_request(payloads, Parameters(**parameters)), heard)
    return joined(heard)


async def streamed_samples_of(
    engine: TorchEngine, pieces: AsyncIterator[Payload], outputs: RecordedOutputs, **parameters: Any
) -> Any:
    """What is heard of codes that come as a stream."""
    await engine.run(
        engine_request({}, Parameters(**parameters), streams={"codes": pieces}), outputs
    )
    return joined(outputs)


def joined(outputs: RecordedOutputs) -> Any:
    """All samples."""
    assert all(payload.kind is PayloadKind.WAVEFORM for payload in outputs.payloads)
    assert {tensor.header.rate_hz for tensor in outputs.tensors} == {24_000}
    return torch.cat([from_payload(payload) for payload in outputs.payloads])


async def in_bursts(codes: Any, seed: int) -> AsyncIterator[Payload]:
    """Codes in groups of random size, with pauses of random length between them."""
    chance = random.Random(seed)  # noqa: S311
    while len(codes):
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        size = chance.randrange(1, 30)
        yield codes_payload(codes[:size].contiguous())
        codes = codes[size:]


async def test_a_greedy_run_of_generate_sounds_the_same_sample_for_sample(
    usual: TorchEngine, model: Any
) -> None:
    spoken = speak(model, words=9, seed=5, codes=30, points=10)

    assert torch.equal(await samples_of(usual, spoken.codes, seed=5), spoken.samples)


async def test_a_sampled_run_of_generate_sounds_the_same_in_another_voice(
    usual: TorchEngine, model: Any
) -> None:
    spoken = speak(model, words=9, seed=6, sampled=True, voice="Ethan", codes=30, points=10)

    heard = await samples_of(usual, spoken.codes, seed=6, voice="ethan")
    assert torch.equal(heard, spoken.samples)
    assert not torch.equal(await samples_of(usual, spoken.codes, seed=6), heard)


async def test_what_is_compared_can_be_heard(quick: TorchEngine) -> None:
    one, other = [await samples_of(quick, some_codes(20, seed=seed), seed=0) for seed in (1, 2)]

    assert one.std() > 0.01
    assert (one - other).abs().max() > 0.01


@pytest.mark.parametrize("count", [1, 2, 13, 100])
async def test_any_number_of_codes_is_whole(quick: TorchEngine, model: Any, count: int) -> None:
    codes = some_codes(count)

    heard = await samples_of(quick, codes, seed=1)
    assert len(heard) == count * 480
    assert torch.equal(heard, vocode(model, codes, seed=1, num_steps=POINTS))


@pytest.mark.parametrize(
    "options", [{"guidance_scale": 0.0}, {"guidance_scale": 2.0, "sway_coefficient": 0.5}]
)
async def test_the_flow_is_steered_by_engine_arguments(
    folder: Path, model: Any, options: dict[str, Any]
) -> None:
    codes = some_codes(20)
    async with vocoding(folder, num_steps=3, **options) as engine:
        heard = await samples_of(engine, codes, seed=1)

    assert torch.equal(heard, vocode(model, codes, seed=1, num_steps=3, **options))
    assert not torch.equal(heard, vocode(model, codes, seed=1, num_steps=3))


async def test_a_seed_repeats_and_no_seed_does_not(quick: TorchEngine) -> None:
    codes = some_codes(10)

    first, again = [await samples_of(quick, codes, seed=4) for _ in range(2)]
    assert torch.equal(first, again)
    assert not torch.equal(await samples_of(quick, codes), await samples_of(quick, codes))


async def test_four_at_once_streamed_or_not_sound_as_each_alone(
    quick: TorchEngine, model: Any
) -> None:
    answers = [some_codes(20 + 20 * seed, seed=seed) for seed in range(4)]

    heard = await asyncio.gather(
        *(samples_of(quick, codes, seed=seed) for seed, codes in enumerate(answers)),
        *(
            streamed_samples_of(quick, in_bursts(codes, seed), RecordedOutputs(), seed=seed)
            for seed, codes in enumerate(answers)
        ),
    )

    for seed, codes in enumerate(answers):
        alone = vocode(model, codes, seed=seed, num_steps=POINTS)
        assert torch.equal(heard[seed], alone)
        assert torch.equal(heard[4 + seed], alone)


class Listener(RecordedOutputs):
    """Can wait for sound, and for steps."""

    def __init__(self) -> None:
        super().__init__()
        self.sounding = asyncio.Event()
        self.stepping = asyncio.Event()

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Hears samples."""
        await super().put(name, payload, index=index)
        self.sounding.set()

    def progress(self, done: int, total: int) -> None:
        """Sees a step."""
        super().progress(done, total)
        self.stepping.set()


async def test_a_long_stream_sounds_before_its_last_code_and_then_like_the_whole(
    quick: TorchEngine, model: Any
) -> None:
    codes = some_codes(260)
    heard = Listener()
    early = 0

    async def waits_for_sound() -> AsyncIterator[Payload]:
        nonlocal early
        yield codes_payload(codes[:200].contiguous())
        await heard.sounding.wait()
        early = len(joined(heard))
        yield codes_payload(codes[200:].contiguous())

    together = await streamed_samples_of(quick, waits_for_sound(), heard, seed=3)

    whole = vocode(model, codes, seed=3, num_steps=POINTS)
    assert 100 * 480 < early < 200 * 480
    assert together.shape == whole.shape
    assert (together - whole).abs().max() <= ROUNDING


@pytest.mark.parametrize("arrival", range(2))
async def test_a_long_stream_sounds_like_the_whole_however_it_arrives(
    quick: TorchEngine, model: Any, arrival: int
) -> None:
    codes = some_codes(301 + arrival, seed=arrival)

    together = await streamed_samples_of(quick, in_bursts(codes, arrival), Listener(), seed=arrival)

    whole = vocode(model, codes, seed=arrival, num_steps=POINTS)
    assert together.shape == whole.shape
    assert (together - whole).abs().max() <= ROUNDING


async def test_progress_is_told_step_by_step(usual: TorchEngine) -> None:
    outputs = RecordedOutputs()
    await samples_of(usual, some_codes(5), outputs)

    assert outputs.steps == [(done, 9) for done in range(10)]


async def test_a_cancelled_request_stops_within_a_step_and_the_next_is_right(
    usual: TorchEngine,
) -> None:
    heard = Listener()
    running = asyncio.create_task(samples_of(usual, some_codes(200), heard))
    waiting = asyncio.create_task(samples_of(usual, some_codes(200)))
    await heard.stepping.wait()
    assert usual.active == 2
    for task in (running, waiting):
        task.cancel()
    await asyncio.wait([running, waiting])

    assert usual.active == 0
    assert len(heard.steps) < 9
    assert not heard.pieces
    assert len(await samples_of(usual, some_codes(2))) == 960


async def test_a_stream_that_is_lost_is_the_requests_own_error(quick: TorchEngine) -> None:
    async def lost() -> AsyncIterator[Payload]:
        yield codes_payload(some_codes(3))
        raise TensorLost("the talker is gone")

    with pytest.raises(TensorLost, match="talker is gone"):
        await streamed_samples_of(quick, lost(), RecordedOutputs())
    assert quick.active == 0


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.empty((0, 1), dtype=torch.long), "nothing to hear"),
        (torch.zeros((3, 2), dtype=torch.long), "one code per row"),
        (torch.zeros((3, 1)), "one code per row"),
        (torch.tensor([[5], [514]]), "from 5 to 514 came; the codebook has 514"),
        (torch.tensor([[-1]]), "from -1 to -1"),
        (torch.zeros((16_385, 1), dtype=torch.long), "this vocoder takes 16384"),
    ],
)
async def test_codes_that_the_model_does_not_have_are_refused(
    quick: TorchEngine, codes: Any, message: str
) -> None:
    with pytest.raises(EngineFailed, match=message):
        await samples_of(quick, codes)


async def test_an_unknown_voice_is_refused_with_those_there_are(quick: TorchEngine) -> None:
    with pytest.raises(InvalidRequest, match="'alloy'; this model has Chelsie, Ethan") as refused:
        await samples_of(quick, some_codes(3), voice="alloy")
    assert refused.value.field == "voice"


async def test_a_coarse_element_type_is_refused(folder: Path) -> None:
    with pytest.raises(SetupError, match="float32 only") as refused:
        async with vocoding(folder, dtype="bfloat16"):
            pass
    assert refused.value.field == "engineArgs.dtype"


async def test_a_voice_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    voice = {"bos_token": 60, "cond": torch.zeros(1, 192), "ref_mel": torch.zeros(1, 100, 80)}
    with_speakers(folder, tmp_path, {"Eve": voice})

    with pytest.raises(InvalidWeights, match="Eve's cond has rows of 192; the model's have 32"):
        async with vocoding(tmp_path):
            pass
