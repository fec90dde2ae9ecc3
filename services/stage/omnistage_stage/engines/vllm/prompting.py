"""From a request to what vLLM is asked: prompt tokens and checked sampling parameters.

Everything a client can get wrong is found here, before the engine's thread sees the request: an
error raised within a step would hit everybody's requests.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from omnistage_common.errors import EngineFailed, InvalidRequest, truncated
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    Conversation,
    Parameters,
    Payload,
    PayloadKind,
    TextPart,
)
from omnistage_stage.engines.vllm.arguments import GenerationDefaults

__all__ = ["Generation", "Template", "conversation_of", "generation_of", "prompt_tokens"]

Template = Callable[[list[dict[str, str]]], list[int]]
"""Chat messages (`role`, `content`) -> prompt tokens, ready for the answer; ValueError: it cannot."""

_TEMPLATE_ROLES: Final = {"developer": "system"}
"""Roles of the OpenAI API that models' chat templates do not know -> what they call them."""

_INT64: Final = 2**63


class Generation(Struct, frozen=True, kw_only=True):
    """How to generate, every value final; None: the model's own default."""

    max_tokens: int
    temperature: float | None
    top_p: float | None
    seed: int | None
    stop: tuple[str, ...]
    presence_penalty: float
    frequency_penalty: float
    ignore_eos: bool


def conversation_of(inputs: Mapping[OutputName, Sequence[Payload]]) -> Conversation:
    """The request's conversation, with what was recognised in place of every audio input.

    Raises:
        InvalidRequest: An audio input without a transcript.
        EngineFailed: The pipeline brings no conversation, or several.
    """
    conversations: list[Conversation] = []
    transcripts: list[str] = []
    for payloads in inputs.values():
        for payload in payloads:
            if isinstance(payload.content, Conversation):
                conversations.append(payload.content)
            elif payload.kind is PayloadKind.TEXT:
                transcripts.append(str(payload.content))
    if len(conversations) != 1:
        raise EngineFailed(
            f"text generation takes one conversation; the pipeline brings {len(conversations)}"
        )
    (conversation,) = conversations
    if conversation.audio_count > len(transcripts):
        raise InvalidRequest(
            f"audio input {len(transcripts)} has no transcript: this model reads text only, and "
            "no recognition stage of its pipeline wrote down what is said",
            field="messages",
        )
    return conversation.with_transcripts(transcripts)


def prompt_tokens(conversation: Conversation, template: Template, context: int) -> list[int]:
    """The tokens of a conversation.

    Args:
        conversation: Text parts only.
        template: The model's chat template and tokenizer.
        context: Tokens of prompt and answer together.

    Raises:
        InvalidRequest: The template refuses the messages, or they leave no room for an answer.
    """
    messages = [
        {
            "role": _TEMPLATE_ROLES.get(message.role, message.role),
            "content": "\n".join(p.text for p in message.parts if isinstance(p, TextPart)),
        }
        for message in conversation.messages
    ]
    try:
        tokens = template(messages)
    except ValueError as error:
        raise InvalidRequest(
            f"the model's chat template refuses these messages: {truncated(str(error))}",
            field="messages",
        ) from error
    if len(tokens) >= context:
        raise InvalidRequest(
            f"the messages have {len(tokens)} tokens; this model takes at most {context - 1} and "
            "one for the answer. Send fewer or shorter messages",
            field="messages",
        )
    return tokens


def generation_of(parameters: Parameters, defaults: GenerationDefaults, room: int) -> Generation:
    """How to generate.

    Args:
        parameters: What the client asks for.
        defaults: What is used where it asks for nothing.
        room: Tokens left in the context.

    Raises:
        InvalidRequest: A parameter is out of range; names it.
    """
    for field, low, high in (
        ("max_tokens", 1, _INT64),
        ("temperature", 0, 2),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("seed", -_INT64, _INT64 - 1),
    ):
        value: Any = getattr(parameters, field)
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{field} {value} is not from {low} to {high}", field=field)
    if parameters.top_p is not None and not 0 < parameters.top_p <= 1:
        raise InvalidRequest(f"top_p {parameters.top_p} is not over 0 and at most 1", field="top_p")
    if "" in parameters.stop:
        raise InvalidRequest("a stop string is empty", field="stop")
    return Generation(
        max_tokens=min(_first(parameters.max_tokens, defaults.max_tokens), room),
        temperature=_first(parameters.temperature, defaults.temperature),
        top_p=_first(parameters.top_p, defaults.top_p),
        seed=parameters.seed,
        stop=parameters.stop,
        presence_penalty=parameters.presence_penalty or 0.0,
        frequency_penalty=parameters.frequency_penalty or 0.0,
        ignore_eos=parameters.ignore_eos,
    )


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value
