"""The split vocoder makes the waveform of Qwen3-Omni's own, whole or chunk by chunk."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from msgspec import structs

from fakes.engine_io import RecordedOutputs, engine_request, engine_spec
from fakes.qwen3_omni import frames_payload, load_model, speak, write_model
from omnistage_common.errors import EngineFailed, TensorLost
from omnistage_common.ids import OutputName
from omnistage_common.payloads import Payload, PayloadKind, Tensor
from omnistage_stage.engines.protocol import EngineRequest
from omnistage_stage.engines.torch import TorchEngine
from omnistage_stage.engines.torch.conversion import from_payload
from omnistage_stage.engines.torch.qwen3_omni.vocoding import VocoderStream

pytestmark = pytest.mark.asyncio(loop_scope="module")

CODES = OutputName("codes")
ROUNDING = 1e-5
"""Of full scale; a third of a 16-bit step. Where kernels of other lengths may round otherwise."""
SAMPLES, CUT = 1920, 555
"""Samples of a frame, and how many the first frame lacks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that can be heard."""
    return write_model(tmp_path_factory.mktemp("qwen3-omni"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """The whole model, monolithic."""
    torch.set_num_threads(1)
    return load_model(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vocoder(folder: Path) -> AsyncIterator[TorchEngine]:
    """The vocoder as a stage."""
    engine = TorchEngine(
        engine_spec({"speech": PayloadKind.WAVEFORM}, model=folder.as_uri(), component="code2wav")
    )
    await engine.load()
    await engine.probe()
    yield engine
    assert engine.active == 0
    await engine.close()


class Recorder(RecordedOutputs):
    """Keeps samples, not the memory they came in: that is the engine's again after `put`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps a copy."""
        assert isinstance(payload.content, Tensor)
        content = structs.replace(payload.content, data=bytes(payload.content.data))
        await super().put(name, structs.replace(payload, content=content), index=index)
        self.begun.set()
        await asyncio.sleep(0)

    @property
    def samples(self) -> Any:
        """All samples so far."""
        return torch.cat([from_payload(payload) for payload in self.payloads])


def random_codes(frames: int) -> Any:
    """Codes of some frames; the same for the same number."""
    return torch.randint(0, 512, (frames, 4), generator=torch.Generator().manual_seed(frames))


def whole(codes: Any) -> EngineRequest:
    """All frames at hand, one payload each."""
    return engine_request({"codes": tuple(frames_payload(frame[None]) for frame in codes)})


def chunked(codes: Any, sizes: Sequence[int]) -> EngineRequest:
    """Frames in chunks of these sizes, over and over."""

    async def chunks() -> AsyncIterator[Payload]:
        start, turn = 0, 0
        while start < len(codes):
            size = sizes[turn % len(sizes)]
            # A buffer of its own, overwritten when the next is asked for, as its lease ends then.
            piece = codes[start : start + size].clone()
            yield frames_payload(piece)
            piece.fill_(511)
            start, turn = start + size, turn + 1
            await asyncio.sleep(0)

    return structs.replace(engine_request({}), streams={CODES: chunks()})


async def samples_of(engine: TorchEngine, request: EngineRequest) -> Any:
    """The waveform of one request."""
    recorder = Recorder()
    await engine.run(request, recorder)
    assert {tensor.header.rate_hz for tensor in recorder.tensors} == {24_000}
    return recorder.samples


def forward(model: Any, codes: Any) -> Any:
    """The model's one forward over all frames."""
    with torch.inference_mode():
        return model.code2wav(codes.T[None])[0, 0]


@pytest.mark.parametrize("frames", [1, 2, 30, 301, 640])
async def test_frames_at_hand_sound_bit_for_bit_as_the_model_decodes_them(
    vocoder: TorchEngine, model: Any, frames: int
) -> None:
    codes = random_codes(frames)
    with torch.inference_mode():
        expected = model.code2wav.chunked_decode(codes.T[None])[0, 0]

    assert torch.equal(await samples_of(vocoder, whole(codes)), expected)


async def test_what_the_whole_model_says_is_what_is_heard(vocoder: TorchEngine, model: Any) -> None:
    spoken = speak(model, words=5)

    assert torch.equal(await samples_of(vocoder, whole(spoken.codes)), spoken.samples)


SIZES = [(1,), (2,), (3, 1), (4, 25), (16, 25), (25,), (71, 1, 73)]
CASES = [(80, sizes) for sizes in SIZES] + [(1, (4,)), (350, (4, 25)), (350, (400,))]


@pytest.mark.parametrize(("frames", "sizes"), CASES, ids=str)
async def test_chunks_put_together_are_the_one_forward_over_all_frames(
    vocoder: TorchEngine, model: Any, frames: int, sizes: tuple[int, ...]
) -> None:
    codes = random_codes(frames)
    expected = forward(model, codes)
    heard = await samples_of(vocoder, chunked(codes, sizes))

    assert heard.shape == expected.shape == (SAMPLES * frames - CUT,)
    assert expected.abs().max() > 0.05
    assert (heard - expected).abs().max() <= ROUNDING


@pytest.mark.parametrize("size", [3, 25])
async def test_in_double_precision_nothing_is_left_of_the_difference(
    folder: Path, size: int
) -> None:
    """So it is rounding, and no sample at a border is computed from anything else."""
    double = load_model(folder).double()
    codes = random_codes(80)
    stream = VocoderStream(double.code2wav)
    # Its output is float32, as is what it is compared with.
    heard = torch.cat([stream.decode(chunk) for chunk in codes.split(size)])

    assert (heard - forward(double, codes).float()).abs().max() <= 2**-23


async def test_chunks_are_no_further_from_the_truth_than_the_one_forward_is(
    vocoder: TorchEngine, model: Any, folder: Path
) -> None:
    codes = random_codes(80)
    truth = forward(load_model(folder).double(), codes)
    heard = await samples_of(vocoder, chunked(codes, (4, 25)))

    assert (heard - truth).abs().max() <= 2 * (forward(model, codes) - truth).abs().max()


async def test_each_chunk_is_heard_before_the_next_is_asked_for(vocoder: TorchEngine) -> None:
    more = asyncio.Event()
    codes = random_codes(6)

    async def chunks() -> AsyncIterator[Payload]:
        yield frames_payload(codes[:2])
        await more.wait()
        yield frames_payload(codes[2:])

    recorder = Recorder()
    request = structs.replace(engine_request({}), streams={CODES: chunks()})
    running = asyncio.create_task(vocoder.run(request, recorder))
    await recorder.begun.wait()

    assert len(recorder.samples) == 2 * SAMPLES - CUT
    more.set()
    await running
    assert len(recorder.samples) == 6 * SAMPLES - CUT


async def test_four_at_once_sound_as_each_does_alone(vocoder: TorchEngine) -> None:
    asked = [(random_codes(n), sizes) for n, sizes in ((9, (2,)), (40, (4, 25)), (75, (16, 25)))]
    alone = [await samples_of(vocoder, chunked(*one)) for one in asked]
    alone.append(await samples_of(vocoder, whole(asked[1][0])))
    together = await asyncio.gather(
        *(samples_of(vocoder, chunked(*one)) for one in asked),
        samples_of(vocoder, whole(asked[1][0])),
    )

    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


async def test_a_cancelled_request_leaves_nothing_and_the_next_is_right(
    vocoder: TorchEngine,
) -> None:
    codes = random_codes(20)
    before = await samples_of(vocoder, chunked(codes, (4,)))
    recorder = Recorder()
    running = asyncio.create_task(vocoder.run(chunked(random_codes(200), (2,)), recorder))
    await recorder.begun.wait()
    assert vocoder.active == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert vocoder.active == 0
    assert recorder.places == 0
    assert torch.equal(await samples_of(vocoder, chunked(codes, (4,))), before)


async def test_no_frames_are_an_error_and_never_silence(vocoder: TorchEngine) -> None:
    for request in (whole(random_codes(0)), chunked(random_codes(0), (4,))):
        with pytest.raises(EngineFailed, match="nothing to hear"):
            await samples_of(vocoder, request)


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (torch.zeros((3, 5), dtype=torch.long), "with 4 codes each"),
        (torch.zeros((3, 4)), "takes int64"),
        (torch.full((3, 4), 512), "a code is 512; the codebook has 512"),
        (torch.full((3, 4), -1), "a code is -1"),
    ],
)
async def test_frames_of_another_model_are_refused(
    vocoder: TorchEngine, codes: Any, words: str
) -> None:
    with pytest.raises(EngineFailed, match=words):
        await samples_of(vocoder, whole(codes))
    with pytest.raises(EngineFailed, match=words):
        await samples_of(vocoder, chunked(codes, (2,)))


async def test_a_lost_talker_is_the_requests_own_error(vocoder: TorchEngine) -> None:
    async def lost() -> AsyncIterator[Payload]:
        yield frames_payload(random_codes(3))
        raise TensorLost("the talker is gone")

    with pytest.raises(TensorLost, match="talker is gone"):
        await samples_of(vocoder, structs.replace(engine_request({}), streams={CODES: lost()}))
