"""From a request to what the model is asked: a checked prompt and sampling parameters.

Everything a client can get wrong is found here, before the engine's thread sees the request: an
error raised within a step would hit everybody's requests.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from omnistage_common.errors import EngineFailed, InvalidRequest, truncated
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    ImagePart,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TextPart,
)
from omnistage_stage.engines.vllm.arguments import GenerationDefaults

__all__ = [
    "ChatMessage",
    "Generation",
    "Prompt",
    "Question",
    "Reader",
    "generation_of",
    "question_of",
    "read_prompt",
]

ChatMessage = dict[str, Any]
"""What a chat template takes: `role`, and `content` as text or, where a message has recordings or
pictures, as a list of parts of type `text`, `audio` and `image`."""

_TEMPLATE_ROLES: Final = {"developer": "system"}
"""Roles of the OpenAI API that models' chat templates do not know -> what they call them."""

_INT64: Final = 2**63


class Question(Struct, frozen=True, kw_only=True):
    """A conversation and what its parts point at."""

    conversation: Conversation
    audio: tuple[Tensor, ...] = ()
    """By the index of an audio part."""
    images: tuple[Tensor, ...] = ()
    """By the index of an image part."""

    @property
    def audio_order(self) -> list[int]:
        """Indices of recordings as they stand in the messages."""
        return [part.index for part in self._parts() if isinstance(part, AudioPart)]

    @property
    def image_order(self) -> list[int]:
        """Indices of pictures as they stand in the messages."""
        return [part.index for part in self._parts() if isinstance(part, ImagePart)]

    def _parts(self) -> list[TextPart | AudioPart | ImagePart]:
        return [part for message in self.conversation.messages for part in message.parts]


class Prompt(Struct, frozen=True, kw_only=True):
    """What the model reads."""

    tokens: list[int]
    """All of it, recordings and pictures as many placeholders as they take."""
    engine_input: Any
    """The same in the foreign engine's form."""


class Reader(Protocol):
    """A model's chat template, tokenizer and processor. Used by one thread."""

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together."""

    @property
    def takes(self) -> frozenset[PayloadKind]:
        """Which of waveforms and images the model takes."""

    def tokens(self, messages: list[ChatMessage]) -> list[int]:
        """The prompt's tokens, ready for the answer, with one placeholder for each medium.

        Raises:
            ValueError: The template refuses the messages.
        """

    def prompt(self, tokens: list[int], question: Question) -> Prompt:
        """The prompt with the media of the question in it.

        Raises:
            ValueError: The processor refuses a medium.
            OmnistageError: A medium is not what it should be.
        """


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


def question_of(
    inputs: Mapping[OutputName, Sequence[Payload]], takes: frozenset[PayloadKind]
) -> Question:
    """What the request asks, checked against what the model takes.

    Where transcripts have arrived, each stands in place of an audio input, and the model hears
    nothing.

    Args:
        inputs: What arrived at the stage.
        takes: Which of waveforms and images the model takes.

    Raises:
        InvalidRequest: An audio input without a transcript for a model that hears nothing, or an
            image input for one that sees nothing.
        EngineFailed: The pipeline brings no conversation, or several, or not what it points at.
    """
    payloads = [payload for arrived in inputs.values() for payload in arrived]
    conversations = [p.content for p in payloads if isinstance(p.content, Conversation)]
    if len(conversations) != 1:
        raise EngineFailed(
            f"text generation takes one conversation; the pipeline brings {len(conversations)}"
        )
    (conversation,) = conversations
    transcripts = [str(p.content) for p in payloads if p.kind is PayloadKind.TEXT]
    hears = PayloadKind.WAVEFORM in takes and not transcripts
    if not hears:
        if conversation.audio_count > len(transcripts):
            raise InvalidRequest(
                f"audio input {len(transcripts)} has no transcript: this model reads no audio, and "
                "no recognition stage of its pipeline wrote down what is said",
                field="messages",
            )
        conversation = conversation.with_transcripts(transcripts)
    if conversation.image_count and PayloadKind.IMAGE not in takes:
        raise InvalidRequest(
            "image input 0 cannot be read: this model takes no images. Send text",
            field="messages",
        )
    question = Question(
        conversation=conversation,
        audio=_tensors(payloads, PayloadKind.WAVEFORM) if hears else (),
        images=_tensors(payloads, PayloadKind.IMAGE),
    )
    for order, arrived, what in (
        (question.audio_order, question.audio, "audio"),
        (question.image_order, question.images, "image"),
    ):
        if order and max(order) >= len(arrived):
            raise EngineFailed(
                f"the messages point at {what} input {max(order)}; the pipeline brings "
                f"{len(arrived)} of them to the stage"
            )
    return question


def read_prompt(question: Question, reader: Reader) -> Prompt:
    """The prompt that asks a question.

    Raises:
        InvalidRequest: The template refuses the messages, the processor refuses a recording or a
            picture, or they leave no room for an answer.
        EngineFailed: A tensor is not what its kind says.
    """
    messages = [_chat_message(message) for message in question.conversation.messages]
    try:
        tokens = reader.tokens(messages)
    except ValueError as error:
        raise InvalidRequest(
            f"the model's chat template refuses these messages: {truncated(str(error))}",
            field="messages",
        ) from error
    # Checked before media are decoded into it, and again when they are.
    _check_room(tokens, reader.context)
    try:
        prompt = reader.prompt(tokens, question)
    except ValueError as error:
        raise InvalidRequest(
            f"the model's processor refuses the audio or images: {truncated(str(error))}",
            field="messages",
        ) from error
    _check_room(prompt.tokens, reader.context)
    return prompt


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


def _tensors(payloads: Sequence[Payload], kind: PayloadKind) -> tuple[Tensor, ...]:
    return tuple(p.content for p in payloads if p.kind is kind and isinstance(p.content, Tensor))


def _chat_message(message: Message) -> ChatMessage:
    role = _TEMPLATE_ROLES.get(message.role, message.role)
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    if len(texts) == len(message.parts):
        return {"role": role, "content": "\n".join(texts)}
    return {"role": role, "content": [_chat_part(part) for part in message.parts]}


def _chat_part(part: TextPart | AudioPart | ImagePart) -> dict[str, str]:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case AudioPart():
            return {"type": "audio"}
        case ImagePart():
            return {"type": "image"}


def _check_room(tokens: Sequence[int], context: int) -> None:
    if len(tokens) >= context:
        raise InvalidRequest(
            f"the messages have {len(tokens)} tokens; this model takes at most {context - 1} and "
            "one for the answer. Send fewer or shorter messages",
            field="messages",
        )


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value
