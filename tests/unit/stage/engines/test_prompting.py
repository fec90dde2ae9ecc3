"""Whatever a client can get wrong is found before the engine sees it, and names the field."""

from typing import Any

import pytest

from fakes.engine_io import conversation, text, user_message
from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    ElementType,
    ImagePart,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
    TextPart,
)
from omnistage_stage.engines.vllm.arguments import GenerationDefaults
from omnistage_stage.engines.vllm.prompting import (
    ChatMessage,
    Prompt,
    Question,
    generation_of,
    question_of,
    read_prompt,
)

CONVERSATION, TRANSCRIPT = OutputName("conversation"), OutputName("transcript")
AUDIO, IMAGE = OutputName("audio"), OutputName("image")
NOTHING: frozenset[PayloadKind] = frozenset()
EVERYTHING = frozenset({PayloadKind.WAVEFORM, PayloadKind.IMAGE})


class SpellingReader:
    """Tokens are the characters of `role:content`; a medium is as many `#` as it has bytes."""

    def __init__(self, context: int = 1_000) -> None:
        self.context = context
        self.takes = EVERYTHING
        self.refusal = ""
        self.medium_refusal = ""

    def tokens(self, messages: list[ChatMessage]) -> list[int]:
        """Spells the messages."""
        if self.refusal:
            raise ValueError(self.refusal)
        return [ord(letter) for m in messages for letter in f"{m['role']}:{m['content']};"]

    def prompt(self, tokens: list[int], question: Question) -> Prompt:
        """Appends the media."""
        if self.medium_refusal:
            raise ValueError(self.medium_refusal)
        media = sum(len(tensor.data) for tensor in (*question.audio, *question.images))
        return Prompt(tokens=tokens + [ord("#")] * media, engine_input=None)


def spelled(question: Question) -> str:
    return "".join(map(chr, read_prompt(question, SpellingReader()).tokens))


def medium(kind: PayloadKind, content: bytes) -> Payload:
    header = TensorHeader(element_type=ElementType.UINT8, shape=(len(content),))
    return Payload(kind=kind, content=Tensor(header=header, data=content))


def asking(*parts: str | AudioPart | ImagePart) -> Payload:
    return conversation(
        Message(
            role="user",
            parts=tuple(TextPart(text=p) if isinstance(p, str) else p for p in parts),
        )
    )


def test_transcripts_stand_where_the_audio_was() -> None:
    question = question_of(
        {
            CONVERSATION: (
                conversation(user_message("First:", 0), user_message(1, "was the second.")),
            ),
            TRANSCRIPT: (text("hello"), text("goodbye")),
        },
        NOTHING,
    )

    assert spelled(question) == "user:First:\nhello;user:goodbye\nwas the second.;"


def test_a_model_that_hears_reads_transcripts_where_there_are_some() -> None:
    question = question_of(
        {
            CONVERSATION: (asking(AudioPart(index=0)),),
            TRANSCRIPT: (text("hello"),),
            AUDIO: (medium(PayloadKind.WAVEFORM, b"hello"),),
        },
        EVERYTHING,
    )

    assert spelled(question) == "user:hello;"


def test_recordings_and_pictures_keep_their_places_among_the_text() -> None:
    question = question_of(
        {
            CONVERSATION: (
                asking(ImagePart(index=0), "see", AudioPart(index=1), AudioPart(index=0)),
            ),
            AUDIO: (medium(PayloadKind.WAVEFORM, b"a"), medium(PayloadKind.WAVEFORM, b"bb")),
            IMAGE: (medium(PayloadKind.IMAGE, b"ccc"),),
        },
        EVERYTHING,
    )
    parts = [
        {"type": "image"},
        {"type": "text", "text": "see"},
        {"type": "audio"},
        {"type": "audio"},
    ]

    assert spelled(question) == f"user:{parts};######"
    assert (question.audio_order, question.image_order) == ([1, 0], [0])


def test_audio_that_nobody_wrote_down_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="audio input 1 has no transcript") as refused:
        question_of(
            {CONVERSATION: (conversation(user_message(0, 1)),), TRANSCRIPT: (text("hello"),)},
            NOTHING,
        )

    assert refused.value.field == "messages"


def test_a_model_that_sees_nothing_refuses_images() -> None:
    with pytest.raises(InvalidRequest, match="takes no images") as refused:
        question_of(
            {CONVERSATION: (asking(ImagePart(index=0)),)}, frozenset({PayloadKind.WAVEFORM})
        )

    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    ("part", "said"), [(AudioPart(index=1), "audio input 1"), (ImagePart(index=0), "image input 0")]
)
def test_a_pipeline_brings_what_the_messages_point_at(
    part: AudioPart | ImagePart, said: str
) -> None:
    inputs = {CONVERSATION: (asking(part),), AUDIO: (medium(PayloadKind.WAVEFORM, b"a"),)}

    with pytest.raises(EngineFailed, match=said):
        question_of(inputs, EVERYTHING)


@pytest.mark.parametrize("count", [0, 2])
def test_a_pipeline_brings_one_conversation(count: int) -> None:
    with pytest.raises(EngineFailed, match=f"brings {count}"):
        question_of({CONVERSATION: (conversation(user_message("Hi")),) * count}, NOTHING)


def test_a_developer_speaks_as_the_system() -> None:
    asked = Conversation(messages=(Message(role="developer", parts=(TextPart(text="Be brief"),)),))

    assert spelled(Question(conversation=asked)) == "system:Be brief;"


def test_a_prompt_that_fills_the_context_is_refused_with_both_counts() -> None:
    asked = Question(conversation=Conversation(messages=(user_message("x" * 44),)))

    assert len(read_prompt(asked, SpellingReader(51)).tokens) == 50
    with pytest.raises(InvalidRequest, match="have 50 tokens; this model takes at most 49") as no:
        read_prompt(asked, SpellingReader(50))
    assert no.value.field == "messages"


def test_media_count_towards_the_context() -> None:
    question = question_of(
        {
            CONVERSATION: (asking(AudioPart(index=0)),),
            AUDIO: (medium(PayloadKind.WAVEFORM, bytes(500)),),
        },
        EVERYTHING,
    )

    with pytest.raises(InvalidRequest, match="have 525 tokens"):
        read_prompt(question, SpellingReader(500))


@pytest.mark.parametrize(
    ("field", "said"),
    [("refusal", "chat template refuses"), ("medium_refusal", "processor refuses the audio")],
)
def test_what_the_model_refuses_is_the_clients_to_mend(field: str, said: str) -> None:
    reader = SpellingReader()
    setattr(reader, field, "roles must alternate")

    with pytest.raises(InvalidRequest, match=rf"{said}.*: roles must alternate") as refused:
        read_prompt(Question(conversation=Conversation(messages=(user_message("Hi"),))), reader)
    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    ("asked", "room", "granted"),
    [(None, 1000, 512), (None, 100, 100), (7, 100, 7), (200, 100, 100)],
)
def test_an_answer_is_as_long_as_asked_and_never_longer_than_the_context(
    asked: int | None, room: int, granted: int
) -> None:
    generation = generation_of(Parameters(max_tokens=asked), GenerationDefaults(), room)

    assert generation.max_tokens == granted


def test_the_client_wins_over_the_stages_defaults() -> None:
    defaults = GenerationDefaults(temperature=0.2, top_p=0.9)

    generation = generation_of(Parameters(temperature=0.0), defaults, 100)

    assert (generation.temperature, generation.top_p) == (0.0, 0.9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
        ("seed", 2**63),
        ("stop", ("",)),
    ],
)
def test_a_parameter_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        generation_of(Parameters(**{field: value}), GenerationDefaults(), 100)

    assert refused.value.field == field
