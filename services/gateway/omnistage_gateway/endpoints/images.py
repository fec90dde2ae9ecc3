"""`POST /v1/images/generations`: a prompt is answered with images."""

from collections.abc import Mapping
from typing import Final

from omnistage_common.errors import UnsupportedModality
from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.endpoints.exchange import Exchange
from omnistage_gateway.endpoints.http import EVENT_STREAM, JSON
from omnistage_gateway.endpoints.inputs import CONVERSATION, conversation_input
from omnistage_gateway.openai.image_request import parse_image_request
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.pipelines.routing import Route
from omnistage_gateway.requests.image_answers import StreamedImages, WholeImages
from omnistage_gateway.requests.sequencing import Sequence

__all__ = ["IMAGE_FIELDS", "answer_images"]

IMAGE_FIELDS: Final[Mapping[str, str]] = {
    "height": "size",
    "messages": "prompt",
    "modalities": "model",
    "steps": "num_inference_steps",
    "width": "size",
}
"""What stages and routes call a field -> what it is called here."""

_PROMPT: Final = frozenset({CONVERSATION})
_IMAGES: Final = frozenset({Modality.IMAGE})


async def answer_images(exchange: Exchange, body: bytes) -> None:
    """See `Answering`."""
    asked = parse_image_request(body)
    pipeline = exchange.choose(asked.model)
    _check(pipeline, exchange)
    pipeline.abilities.check_denoises(asked.denoising_field)
    route = pipeline.routes.find(_PROMPT, _IMAGES)
    sequence = exchange.sequence(
        pipeline,
        route,
        inputs=conversation_input(asked.conversation),
        parameters=asked.parameters,
        stream=asked.stream,
    )
    if asked.stream:
        stream = exchange.answer = StreamedImages(
            exchange.stream(*EVENT_STREAM),
            count=asked.count,
            image_format=asked.format,
            quality=asked.quality,
        )
        await sequence.run(stream)
        await stream.finish(
            prompt_tokens=_prompt_tokens(route, sequence), report=exchange.report(sequence)
        )
    else:
        answer = WholeImages(asked.count, asked.format, asked.quality)
        await sequence.run(answer)
        file = answer.body(
            prompt_tokens=_prompt_tokens(route, sequence), report=exchange.report(sequence)
        )
        await exchange.respond(JSON, file)


def _check(pipeline: Pipeline, exchange: Exchange) -> None:
    abilities = pipeline.abilities
    if Modality.IMAGE not in abilities.makes or CONVERSATION not in abilities.takes:
        makes = ", ".join(sorted(modality.value for modality in abilities.makes))
        raise UnsupportedModality(
            f"the model `{exchange.model}` makes no images from a prompt, it makes: {makes}; use"
            " POST /v1/chat/completions",
            field="model",
        )


def _prompt_tokens(route: Route, sequence: Sequence) -> int:
    """Tokens that the stages read which take the prompt."""
    readers = {stage.name for stage in route.stages if stage.request_inputs}
    return sum(stage.input_tokens for stage in sequence.reports() if stage.name in readers)
