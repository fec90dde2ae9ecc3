"""Whatever a client can get wrong is found before the engine sees it, and names the field."""

from typing import Any

import pytest

from fakes.engine_io import conversation, text, user_message
from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.ids import OutputName
from omnistage_common.payloads import Conversation, Message, Parameters, TextPart
from omnistage_stage.engines.vllm.arguments import GenerationDefaults
from omnistage_stage.engines.vllm.prompting import conversation_of, generation_of, prompt_tokens

CONVERSATION, TRANSCRIPT = OutputName("conversation"), OutputName("transcript")


def characters(messages: list[dict[str, str]]) -> list[int]:
    """A template whose tokens are the characters of `role:content`."""
    return [ord(letter) for m in messages for letter in f"{m['role']}:{m['content']};"]


def spelled(asked: Conversation) -> str:
    return "".join(map(chr, prompt_tokens(asked, characters, 1_000)))


def test_transcripts_stand_where_the_audio_was() -> None:
    asked = conversation_of(
        {
            CONVERSATION: (
                conversation(user_message("First:", 0), user_message(1, "was the second.")),
            ),
            TRANSCRIPT: (text("hello"), text("goodbye")),
        }
    )

    assert spelled(asked) == "user:First:\nhello;user:goodbye\nwas the second.;"


def test_audio_that_nobody_wrote_down_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="audio input 1 has no transcript") as refused:
        conversation_of(
            {CONVERSATION: (conversation(user_message(0, 1)),), TRANSCRIPT: (text("hello"),)}
        )

    assert refused.value.field == "messages"


@pytest.mark.parametrize("count", [0, 2])
def test_a_pipeline_brings_one_conversation(count: int) -> None:
    with pytest.raises(EngineFailed, match=f"brings {count}"):
        conversation_of({CONVERSATION: (conversation(user_message("Hi")),) * count})


def test_a_developer_speaks_as_the_system() -> None:
    asked = Conversation(messages=(Message(role="developer", parts=(TextPart(text="Be brief"),)),))

    assert spelled(asked) == "system:Be brief;"


def test_a_prompt_that_fills_the_context_is_refused_with_both_counts() -> None:
    asked = Conversation(messages=(user_message("x" * 44),))

    assert len(prompt_tokens(asked, characters, 51)) == 50
    with pytest.raises(InvalidRequest, match="have 50 tokens; this model takes at most 49") as no:
        prompt_tokens(asked, characters, 50)
    assert no.value.field == "messages"


def test_messages_that_the_template_refuses_are_the_clients_to_mend() -> None:
    def refuse(_messages: list[dict[str, str]]) -> list[int]:
        raise ValueError("roles must alternate")

    with pytest.raises(InvalidRequest, match="roles must alternate") as refused:
        prompt_tokens(Conversation(messages=(user_message("Hi"),)), refuse, 50)
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
