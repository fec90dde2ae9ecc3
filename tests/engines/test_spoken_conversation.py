"""The three engines in a row: a spoken question gets a spoken answer that says the right thing."""

import pytest

from fakes.engine_io import RecordedOutputs, conversation, engine_request, text, user_message
from omnistage_common.payloads import Parameters, Payload, PayloadKind, Tensor
from omnistage_stage.engines.hibari import HibariEngine
from omnistage_stage.engines.pocketsphinx import PocketsphinxEngine
from omnistage_stage.engines.protocol import FinishReason
from omnistage_stage.engines.vllm import VllmEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_spoken_question_is_answered_aloud(
    speaker: HibariEngine,
    recogniser: PocketsphinxEngine,
    writer: VllmEngine,
    question: Tensor,
) -> None:
    heard, answer, speech, heard_back = (RecordedOutputs() for _ in range(4))
    recording = Payload(kind=PayloadKind.WAVEFORM, content=question)

    await recogniser.run(engine_request({"audio": (recording,)}), heard)
    assert heard.text == "what is the capital of france"

    result = await writer.run(
        engine_request(
            {"conversation": (conversation(user_message(0)),), "transcript": heard.payloads},
            Parameters(temperature=0, max_tokens=40),
        ),
        answer,
    )
    assert "Paris" in answer.text
    assert result.finish_reason is FinishReason.STOP

    await speaker.run(engine_request({"text": (text(answer.text),)}), speech)
    await recogniser.run(engine_request({"audio": speech.payloads}), heard_back)
    assert "paris" in heard_back.text
