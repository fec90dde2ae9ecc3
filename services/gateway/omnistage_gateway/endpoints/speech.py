"""`POST /v1/audio/speech`: a text is answered with its speech."""

from collections.abc import Mapping
from typing import Final

from omnistage_common.errors import UnsupportedModality
from omnistage_common.payloads import Output, Payload, PayloadKind
from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.endpoints.exchange import Exchange
from omnistage_gateway.endpoints.http import EVENT_STREAM
from omnistage_gateway.endpoints.inputs import TEXT
from omnistage_gateway.openai.speech_request import (
    Delivery,
    SpeechRequest,
    parse_speech_request,
)
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.requests.sequencing import Sequence
from omnistage_gateway.requests.speech_answers import EventSpeech, StreamedSpeech, WholeSpeech

__all__ = ["SPEECH_FIELDS", "answer_speech"]

SPEECH_FIELDS: Final[Mapping[str, str]] = {
    "audio.voice": "voice",
    "audio.format": "response_format",
    "messages": "input",
    "modalities": "model",
}
"""What stages and routes call a field -> what it is called here."""

_BRINGS: Final = frozenset({TEXT})
_SOUND: Final = frozenset({Modality.AUDIO})


async def answer_speech(exchange: Exchange, body: bytes) -> None:
    """See `Answering`."""
    asked = parse_speech_request(body)
    pipeline = exchange.choose(asked.model)
    _check(pipeline, exchange)
    text = Payload(kind=PayloadKind.TEXT, content=asked.text)
    sequence = exchange.sequence(
        pipeline,
        pipeline.routes.find(_BRINGS, _SOUND),
        inputs={TEXT: (Output(name=TEXT, payload=text),)},
        parameters=asked.parameters,
        stream=asked.delivery is not Delivery.WHOLE,
        first_frames=asked.first_frames,
    )
    if asked.delivery is Delivery.SSE:
        await _events(exchange, asked, sequence)
    elif asked.delivery is Delivery.AUDIO:
        stream = exchange.answer = StreamedSpeech(
            exchange.stream(_content_type(asked)), asked.format
        )
        await sequence.run(stream)
        await stream.finish()
    else:
        answer = WholeSpeech(asked.format)
        await sequence.run(answer)
        await exchange.respond(_content_type(asked), await answer.body())


async def _events(exchange: Exchange, asked: SpeechRequest, sequence: Sequence) -> None:
    answer = exchange.answer = EventSpeech(exchange.stream(*EVENT_STREAM), asked.format)
    await sequence.run(answer)
    await answer.finish(usage=sequence.usage(), report=exchange.report(sequence))


def _content_type(asked: SpeechRequest) -> tuple[bytes, bytes]:
    return (b"content-type", asked.format.media_type.encode())


def _check(pipeline: Pipeline, exchange: Exchange) -> None:
    abilities = pipeline.abilities
    if TEXT not in abilities.takes or Modality.AUDIO not in abilities.makes:
        makes = ", ".join(sorted(modality.value for modality in abilities.makes))
        raise UnsupportedModality(
            f"the model `{exchange.model}` does not speak a text as it is, it makes: {makes}; use"
            " POST /v1/chat/completions",
            field="model",
        )
