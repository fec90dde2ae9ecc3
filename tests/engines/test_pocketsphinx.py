"""Speech recognition: right at any rate, the same each time, and honest about silence."""

import asyncio

import numpy as np
import pytest
import soxr

from fakes.engine_io import RecordedOutputs, engine_request, text
from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.payloads import ElementType, Payload, PayloadKind, Tensor, TensorHeader
from omnistage_stage.engines.hibari import HibariEngine
from omnistage_stage.engines.pocketsphinx import PocketsphinxEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

Samples = np.ndarray[tuple[int], np.dtype[np.float32]]
SAID = "what is the capital of france"


def recording(samples: Samples, rate_hz: int) -> Payload:
    """A payload of float32 samples."""
    header = TensorHeader(element_type=ElementType.FLOAT32, shape=(len(samples),), rate_hz=rate_hz)
    data = samples.astype(np.float32).tobytes()
    return Payload(kind=PayloadKind.WAVEFORM, content=Tensor(header=header, data=data))


def samples_of(tensor: Tensor) -> Samples:
    return np.frombuffer(tensor.data, np.int16).astype(np.float32) / np.float32(32768)


async def hear(recogniser: PocketsphinxEngine, *recordings: Payload) -> RecordedOutputs:
    outputs = RecordedOutputs()
    await recogniser.run(engine_request({"audio": recordings}), outputs)
    return outputs


@pytest.mark.parametrize("rate_hz", [16_000, 22_050, 44_100, 48_000])
async def test_audio_of_any_rate_is_understood(
    recogniser: PocketsphinxEngine, question: Tensor, rate_hz: int
) -> None:
    samples = soxr.resample(samples_of(question), question.header.rate_hz, rate_hz)

    assert (await hear(recogniser, recording(samples, rate_hz))).text == SAID


async def test_pcm16_is_understood_through_a_read_only_view(
    recogniser: PocketsphinxEngine, question: Tensor
) -> None:
    view = Tensor(header=question.header, data=memoryview(bytes(question.data)).toreadonly())
    payload = Payload(kind=PayloadKind.WAVEFORM, content=view)

    assert (await hear(recogniser, payload)).text == SAID


async def test_each_recording_gets_a_transcript_in_order(
    recogniser: PocketsphinxEngine, speaker: HibariEngine, question: Tensor
) -> None:
    spoken = RecordedOutputs()
    await speaker.run(engine_request({"text": (text("How many days are in a week?"),)}), spoken)
    first = Payload(kind=PayloadKind.WAVEFORM, content=question)
    outputs = await hear(recogniser, first, spoken.payloads[0])

    assert [(name, index, payload.content) for name, index, payload in outputs.pieces] == [
        ("transcript", 0, SAID),
        ("transcript", 1, "how many days are in a week"),
    ]


async def test_what_was_heard_before_changes_nothing(
    recogniser: PocketsphinxEngine, question: Tensor
) -> None:
    loud = recording(np.clip(samples_of(question) * 8, -1, 1), 24_000)
    quiet = recording(samples_of(question) * 0.3, 24_000)
    alone = [(await hear(recogniser, audio)).text for audio in (loud, quiet)]
    mixed = [(await hear(recogniser, audio)).text for audio in (quiet, loud, quiet)]

    assert mixed == [alone[1], alone[0], alone[1]]


async def test_a_long_recording_is_cut_in_its_pauses(
    recogniser: PocketsphinxEngine, question: Tensor
) -> None:
    pause = np.zeros(12_000, np.float32)
    spoken = [piece for _ in range(12) for piece in (samples_of(question), pause)]
    outputs = await hear(recogniser, recording(np.concatenate(spoken), 24_000))

    assert outputs.text.count("capital of france") >= 10


async def test_the_event_loop_lives_while_a_long_recording_is_decoded(
    recogniser: PocketsphinxEngine, question: Tensor
) -> None:
    loop = asyncio.get_running_loop()
    long = np.tile(samples_of(question), 15)
    hearing = asyncio.create_task(hear(recogniser, recording(long, 24_000)))
    begun, waits = loop.time(), []
    while not hearing.done():
        before = loop.time()
        await asyncio.sleep(0.001)
        waits.append(loop.time() - before)

    assert max(waits) < 0.5 * (loop.time() - begun)


async def test_a_cancelled_recording_makes_way_long_before_its_end(
    recogniser: PocketsphinxEngine, question: Tensor
) -> None:
    loop = asyncio.get_running_loop()
    long = recording(np.tile(samples_of(question), 15), 24_000)
    begun = loop.time()
    await hear(recogniser, long)
    whole = loop.time() - begun

    task = asyncio.create_task(hear(recogniser, long))
    await asyncio.sleep(0.05)
    begun = loop.time()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert loop.time() - begun < 0.5 * whole
    payload = Payload(kind=PayloadKind.WAVEFORM, content=question)
    assert (await hear(recogniser, payload)).text == SAID


@pytest.mark.parametrize("loudness", [0.0, 0.001, 0.1])
async def test_a_recording_without_speech_is_refused(
    recogniser: PocketsphinxEngine, loudness: float
) -> None:
    noise = np.random.default_rng(1).normal(size=48_000).astype(np.float32) * loudness

    with pytest.raises(InvalidRequest, match="no speech was recognised in audio input 0") as no:
        await hear(recogniser, recording(noise, 24_000))
    assert no.value.field == "messages"


async def test_an_empty_recording_is_refused(recogniser: PocketsphinxEngine) -> None:
    with pytest.raises(InvalidRequest, match="no speech"):
        await hear(recogniser, recording(np.zeros(0, np.float32), 24_000))


async def test_a_recording_over_the_limit_is_refused(recogniser: PocketsphinxEngine) -> None:
    with pytest.raises(InvalidRequest, match=r"lasts 41\.0 s; this stage takes at most 40 s"):
        await hear(recogniser, recording(np.zeros(41 * 8_000, np.float32), 8_000))


@pytest.mark.parametrize(
    "header",
    [
        TensorHeader(element_type=ElementType.FLOAT32, shape=(2, 800), rate_hz=16_000),
        TensorHeader(element_type=ElementType.FLOAT32, shape=(1600,)),
        TensorHeader(element_type=ElementType.INT32, shape=(1600,), rate_hz=16_000),
    ],
)
async def test_what_is_not_mono_audio_is_a_mistake_of_the_pipeline(
    recogniser: PocketsphinxEngine, header: TensorHeader
) -> None:
    tensor = Tensor(header=header, data=bytes(header.length))

    with pytest.raises(EngineFailed, match="mono float32 or int16"):
        await hear(recogniser, Payload(kind=PayloadKind.WAVEFORM, content=tensor))


async def test_no_recording_is_a_mistake_of_the_pipeline(recogniser: PocketsphinxEngine) -> None:
    with pytest.raises(EngineFailed, match="brings none"):
        await hear(recogniser)
