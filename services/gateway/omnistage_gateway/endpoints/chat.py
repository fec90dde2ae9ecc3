"""`POST /v1/chat/completions`: a conversation is answered with text, sound, images or video."""

from collections.abc import Mapping
from typing import Final

from omnistage_common.errors import UnsupportedModality
from omnistage_common.ids import OutputName
from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.endpoints.exchange import Exchange
from omnistage_gateway.endpoints.http import EVENT_STREAM, JSON
from omnistage_gateway.endpoints.inputs import (
    AUDIO,
    CONVERSATION,
    IMAGE,
    TEXT,
    conversation_input,
    media_inputs,
)
from omnistage_gateway.media.formats import AudioFormat
from omnistage_gateway.openai.chat_request import ChatRequest, parse_chat_request
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.requests.chat_answers import StreamedChat, WholeChat
from omnistage_gateway.requests.sequencing import Sequence

__all__ = ["CHAT_FIELDS", "answer_chat"]

CHAT_FIELDS: Final[Mapping[str, str]] = {
    "frames": "num_frames",
    "prompt": "messages",
    "steps": "num_inference_steps",
    "voice": "audio.voice",
}
"""What stages call a field -> what it is called here."""

_WORDS_ALONE: Final = frozenset({CONVERSATION})


async def answer_chat(exchange: Exchange, body: bytes) -> None:
    """See `Answering`."""
    chat = parse_chat_request(body)
    pipeline = exchange.choose(chat.model)
    wants = pipeline.abilities.wants(chat.modalities)
    _check(pipeline, chat)
    route = pipeline.routes.find(_brings(chat), wants)
    inputs = conversation_input(chat.conversation)
    if chat.audio_inputs or chat.image_inputs:
        inputs |= await media_inputs(exchange, chat.audio_inputs, chat.image_inputs)
    sequence = exchange.sequence(
        pipeline,
        route,
        inputs=inputs,
        parameters=chat.parameters,
        stream=chat.stream,
        first_frames=chat.first_frames,
    )
    audio_format = chat.audio_format or AudioFormat.WAV if Modality.AUDIO in wants else None
    if chat.stream:
        await _stream(exchange, chat, sequence, audio_format)
    else:
        await _whole(exchange, chat, sequence, audio_format)


def _brings(chat: ChatRequest) -> frozenset[OutputName]:
    if not chat.audio_inputs and not chat.image_inputs:
        return _WORDS_ALONE
    media = {AUDIO: chat.audio_inputs, IMAGE: chat.image_inputs}
    return _WORDS_ALONE | {name for name, items in media.items() if items}


def _check(pipeline: Pipeline, chat: ChatRequest) -> None:
    """Returns when the pipeline can be talked to, and knows what it is told of denoising."""
    abilities = pipeline.abilities
    if CONVERSATION not in abilities.takes and TEXT in abilities.takes:
        raise UnsupportedModality(
            f"the model `{chat.model}` speaks text and holds no conversation; use"
            " POST /v1/audio/speech",
            field="model",
        )
    abilities.check_denoises(chat.denoising_field)


async def _whole(
    exchange: Exchange, chat: ChatRequest, sequence: Sequence, audio_format: AudioFormat | None
) -> None:
    answer = WholeChat(audio_format)
    await sequence.run(answer)
    body = await answer.body(
        model=chat.model,
        finish_reason=sequence.progress.finish_reason,
        usage=sequence.usage(),
        report=exchange.report(sequence, answer.transcripts.all()),
    )
    await exchange.respond(JSON, body)


async def _stream(
    exchange: Exchange, chat: ChatRequest, sequence: Sequence, audio_format: AudioFormat | None
) -> None:
    answer = exchange.answer = StreamedChat(
        exchange.stream(*EVENT_STREAM),
        request_id=exchange.id,
        model=chat.model,
        audio_format=audio_format,
    )
    await sequence.run(answer)
    await answer.finish(
        finish_reason=sequence.progress.finish_reason,
        usage=sequence.usage() if chat.include_usage else None,
        report=exchange.report(sequence, answer.transcripts.all()),
    )
