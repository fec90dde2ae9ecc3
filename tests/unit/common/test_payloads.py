"""Payloads are values: what they say of themselves."""

import pytest

from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    ElementType,
    Message,
    TensorHeader,
    TextPart,
)

SPOKEN = Conversation(
    messages=(
        Message(role="system", parts=(TextPart(text="be brief"),)),
        Message(role="user", parts=(AudioPart(index=1), TextPart(text="and"), AudioPart(index=0))),
        Message(role="assistant", parts=()),
    )
)


@pytest.mark.parametrize(
    ("element", "size"),
    [
        (ElementType.FLOAT32, 4),
        (ElementType.FLOAT16, 2),
        (ElementType.BFLOAT16, 2),
        (ElementType.INT64, 8),
        (ElementType.INT32, 4),
        (ElementType.INT16, 2),
        (ElementType.UINT8, 1),
    ],
)
def test_element_types_know_their_size(element: ElementType, size: int) -> None:
    assert element.size == size


def test_every_element_type_has_a_size() -> None:
    assert all(element.size > 0 for element in ElementType)


@pytest.mark.parametrize(("shape", "length"), [((), 4), ((3,), 12), ((2, 3), 24), ((5, 0), 0)])
def test_a_header_knows_the_length_of_its_tensor(shape: tuple[int, ...], length: int) -> None:
    assert TensorHeader(element_type=ElementType.FLOAT32, shape=shape).length == length


def test_a_conversation_counts_its_audio() -> None:
    assert SPOKEN.audio_count == 2
    assert Conversation(messages=()).audio_count == 0


def test_transcripts_stand_where_their_audio_stood() -> None:
    written = SPOKEN.with_transcripts(["first", "second"])

    assert written.audio_count == 0
    assert [
        [part.text for part in m.parts if isinstance(part, TextPart)] for m in written.messages
    ] == [
        ["be brief"],
        ["second", "and", "first"],
        [],
    ]
    assert [m.role for m in written.messages] == ["system", "user", "assistant"]
    assert SPOKEN.audio_count == 2


def test_a_conversation_without_audio_needs_no_transcripts() -> None:
    written = SPOKEN.with_transcripts(["first", "second"])

    assert written.with_transcripts([]) == written


def test_a_missing_transcript_is_an_error() -> None:
    with pytest.raises(IndexError):
        SPOKEN.with_transcripts(["only one"])
