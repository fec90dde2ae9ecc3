"""Answers that the official client reads as its own."""

import base64
import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from omnistage_common.ids import ModelName, ReplicaId, RequestId, StageName
from omnistage_common.links.frames import FinishReason
from omnistage_gateway.openai.answers import (
    Answer,
    AnswerUsage,
    RequestReport,
    StageReport,
    chat_completion,
    media_part,
)

REPORT = RequestReport(
    request_id=RequestId("abc"),
    transcripts=("What is the capital of France?",),
    stages=(
        StageReport(
            name=StageName("thinker"),
            replica=ReplicaId("thinker-0"),
            queue_ms=0.1,
            run_ms=2.5,
            first_output_ms=1.5,
            input_tokens=9,
            output_tokens=4,
        ),
        StageReport(
            name=StageName("code2wav"),
            replica=ReplicaId("code2wav-1"),
            queue_ms=0.0,
            run_ms=1.0,
            first_output_ms=None,
        ),
    ),
    total_ms=4.0,
)


def raw(**fields: Any) -> bytes:
    given: dict[str, Any] = {
        "created": 1_700_000_000,
        "model": ModelName("omni"),
        "text": "Paris.",
        "finish_reason": FinishReason.STOP,
        "usage": AnswerUsage.of(9, 4),
        "report": REPORT,
        **fields,
    }
    return chat_completion(Answer(**given))


def answer(**fields: Any) -> ChatCompletion:
    return ChatCompletion.model_validate_json(raw(**fields), strict=True)


def test_a_text_answer_is_a_chat_completion() -> None:
    completion = answer()
    assert (completion.id, completion.model) == ("chatcmpl-abc", "omni")
    assert completion.created == 1_700_000_000
    (choice,) = completion.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", "Paris.")
    assert choice.message.refusal is None
    assert choice.message.audio is None


def test_usage_adds_up() -> None:
    usage = answer(usage=AnswerUsage.of(9, 4, 16)).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (9, 20, 29)
    details = usage.completion_tokens_details
    assert details is not None
    assert (details.text_tokens, details.audio_tokens) == (4, 16)


def test_tokens_that_nobody_counts_are_not_reported_as_none() -> None:
    usage = answer(usage=AnswerUsage.of(9, 4)).usage
    assert usage is not None
    assert usage.completion_tokens_details is None


def test_a_spoken_answer_holds_its_text_twice_and_its_sound_once() -> None:
    sound = bytes(range(256)) * 3
    message = answer(audio=sound).choices[0].message
    assert message.audio is not None
    assert message.audio.id == "audio-abc"
    assert base64.b64decode(message.audio.data, validate=True) == sound
    assert message.content == message.audio.transcript == "Paris."
    assert message.audio.expires_at == 1_700_000_000


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length"), (FinishReason.NONE, "stop")],
)
def test_every_finish_reason_is_a_word_of_openai(reason: FinishReason, word: str) -> None:
    assert answer(finish_reason=reason).choices[0].finish_reason == word


def test_the_extension_says_what_each_stage_took() -> None:
    extra = answer().model_extra
    assert extra is not None
    assert extra["omnistage"] == {
        "request_id": "abc",
        "transcripts": ["What is the capital of France?"],
        "stages": [
            {
                "name": "thinker",
                "replica": "thinker-0",
                "queue_ms": 0.1,
                "run_ms": 2.5,
                "first_output_ms": 1.5,
                "input_tokens": 9,
                "output_tokens": 4,
            },
            {
                "name": "code2wav",
                "replica": "code2wav-1",
                "queue_ms": 0.0,
                "run_ms": 1.0,
                "first_output_ms": None,
                "input_tokens": 0,
                "output_tokens": 0,
            },
        ],
        "total_ms": 4.0,
    }


def test_text_of_any_script_survives() -> None:
    text = '"\\ \n\u2028 ünïcode 日本 🙂 \x00'
    assert answer(text=text).choices[0].message.content == text


def test_with_images_the_content_is_a_list_of_parts_with_the_text_first() -> None:
    media = (media_part("image/png", b"one"), media_part("video/mp4", b"two"))
    body = json.loads(raw(media=media))
    content = body["choices"][0]["message"]["content"]
    assert content == [
        {"type": "text", "text": "Paris."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,b25l"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,dHdv"}},
    ]


def test_images_without_a_word_are_the_whole_content() -> None:
    body = json.loads(raw(text="", media=(media_part("image/png", b"one"),)))
    (part,) = body["choices"][0]["message"]["content"]
    assert part["type"] == "image_url"
