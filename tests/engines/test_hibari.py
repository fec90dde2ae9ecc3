"""Text to speech: whole, in pieces, on time, and clear about voices it does not have."""

import asyncio

import numpy as np
import pytest

from fakes.engine_io import RecordedOutputs, engine_request, engine_spec, text
from omnistage_common.errors import EngineFailed, InvalidRequest, InvalidWeights, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import ElementType, Parameters, Payload, PayloadKind, TensorHeader
from omnistage_stage.engines.hibari import OPENAI_VOICES, HibariEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORY = "A lark rose at dawn. It sang of bread and rain! Who was listening? Only Dr. Smith was."


async def speak(speaker: HibariEngine, said: str, **parameters: float | str) -> RecordedOutputs:
    outputs = RecordedOutputs()
    asked = Parameters(**parameters)  # type: ignore[arg-type]
    await speaker.run(engine_request({"answer": (text(said),)}, asked), outputs)
    return outputs


def samples(outputs: RecordedOutputs) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.concatenate([np.frombuffer(t.data, np.int16) for t in outputs.tensors])


async def test_speech_is_pcm16_at_24_khz(speaker: HibariEngine) -> None:
    outputs = await speak(speaker, "Hello there.")
    (tensor,) = outputs.tensors

    assert tensor.header == TensorHeader(
        element_type=ElementType.INT16, shape=(len(tensor.data) // 2,), rate_hz=24_000
    )
    assert outputs.pieces[0][0] == "speech"
    assert outputs.payloads[0].kind is PayloadKind.WAVEFORM
    assert 12_000 < tensor.header.shape[0] < 48_000
    assert np.abs(samples(outputs).astype(np.int32)).max() > 1_000


async def test_a_long_text_comes_sentence_by_sentence_and_adds_up_to_the_whole(
    speaker: HibariEngine,
) -> None:
    outputs = await speak(speaker, STORY)

    whole = speaker._speaker(STORY, seed=0)
    expected = (np.clip(whole, -1, 1) * 32767).astype(np.int16)
    assert len(outputs.tensors) == 4
    np.testing.assert_array_equal(samples(outputs), expected)


async def test_pieces_of_text_are_joined_before_they_are_spoken(speaker: HibariEngine) -> None:
    outputs = RecordedOutputs()
    pieces = (text("A lark ro"), text("se at da"), text("wn."))
    await speaker.run(engine_request({"answer": pieces}), outputs)

    whole = await speak(speaker, "A lark rose at dawn.")
    np.testing.assert_array_equal(samples(outputs), samples(whole))


async def test_requests_side_by_side_sound_as_alone(speaker: HibariEngine) -> None:
    alone = samples(await speak(speaker, STORY))
    together = await asyncio.gather(*(speak(speaker, STORY) for _ in range(4)))

    for outputs in together:
        np.testing.assert_array_equal(samples(outputs), alone)


async def test_a_higher_speed_takes_less_time(speaker: HibariEngine) -> None:
    slow = len(samples(await speak(speaker, STORY, speed=0.75)))
    fast = len(samples(await speak(speaker, STORY, speed=1.5)))

    assert fast < 0.7 * slow


@pytest.mark.parametrize("speed", [0.2, 4.0])
async def test_a_speed_that_the_voice_cannot_keep_is_refused(
    speaker: HibariEngine, speed: float
) -> None:
    with pytest.raises(InvalidRequest, match=r"from 0\.5 to 2\.0") as refused:
        await speak(speaker, "Hello.", speed=speed)
    assert refused.value.field == "speed"


@pytest.mark.parametrize("voice", ["heart", *OPENAI_VOICES])
async def test_stock_clients_voices_are_aliases_of_the_one_voice(
    speaker: HibariEngine, voice: str
) -> None:
    assert (await speak(speaker, "Hi.", voice=voice)).tensors


async def test_an_unknown_voice_is_refused_with_the_ones_there_are(speaker: HibariEngine) -> None:
    with pytest.raises(InvalidRequest, match=r"'heart', which also answers to alloy") as refused:
        await speak(speaker, "Hi.", voice="darth")
    assert refused.value.field == "audio.voice"


@pytest.mark.parametrize("said", ["", "  \n ", "\N{SNOWMAN}"])
async def test_nothing_to_say_is_an_error_and_never_silence(
    speaker: HibariEngine, said: str
) -> None:
    with pytest.raises(EngineFailed):
        await speak(speaker, said)


async def test_two_texts_are_a_mistake_of_the_pipeline(speaker: HibariEngine) -> None:
    request = engine_request({"text": (text("One."),), "transcript": (text("Two."),)})

    with pytest.raises(EngineFailed, match="text, transcript"):
        await speaker.run(request, RecordedOutputs())


class FullConsumer(RecordedOutputs):
    """Takes one piece and then no more."""

    def __init__(self) -> None:
        super().__init__()
        self.full = asyncio.Event()

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps an output and never returns."""
        self.emit(name, payload, index=index)
        self.full.set()
        await asyncio.Event().wait()


async def test_a_consumer_that_cannot_keep_up_is_waited_for_and_cancelling_ends_it(
    speaker: HibariEngine,
) -> None:
    outputs = FullConsumer()
    task = asyncio.create_task(
        speaker.run(engine_request({"answer": (text(STORY * 20),)}), outputs)
    )
    await outputs.full.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(outputs.tensors) == 1
    assert (await speak(speaker, "Next.")).tensors


async def test_a_voice_that_is_not_there_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path_factory.mktemp("voices")))
    for voice, said in (("emma", "hibari --voice emma"), ("darth", "it has heart")):
        engine = HibariEngine(engine_spec({"speech": PayloadKind.WAVEFORM}, voice=voice))
        with pytest.raises(InvalidWeights, match=said):
            await engine.load()
        await engine.close()


async def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(SetupError, match=r"engineArgs\.thread: .*'threads'"):
        HibariEngine(engine_spec({"speech": PayloadKind.WAVEFORM}, thread=2))
