"""`docs/reference/http-api.md` says what the code does."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct

from omnistage_common.errors import STATUS
from omnistage_gateway.media.formats import AudioFormat, AudioInputFormat, ImageFormat
from omnistage_gateway.openai.answers import RequestReport, StageReport
from omnistage_gateway.openai.chat_body import ChatCompletionBody
from omnistage_gateway.openai.chat_request import parse_chat_request
from omnistage_gateway.openai.image_request import (
    IMAGE_UNSUPPORTED,
    ImageGenerationBody,
    parse_image_request,
)
from omnistage_gateway.openai.refusals import Unsupported
from omnistage_gateway.openai.speech_request import (
    SPEECH_UNSUPPORTED,
    SpeechBody,
    SpeechFormat,
    parse_speech_request,
)
from omnistage_gateway.openai.unsupported import UNSUPPORTED

PAGE = Path(__file__).parents[4].joinpath("docs/reference/http-api.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text from a heading to the next one."""
    return re.split(r"^#+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([a-z_0-9]+)`", text)


def first_column(text: str) -> list[str]:
    columns = re.findall(r"^\| ([`a-z_0-9, ]+) \|", text, flags=re.MULTILINE)
    return [name for column in columns for name in quoted(column)]


def rows() -> dict[str, str]:
    """The row of each code; of classes that share one, the first in the table of errors stands."""
    table: dict[str, str] = {}
    for kind, status in STATUS.items():
        when = (kind.__doc__ or "").strip().splitlines()[0]
        row = f"| `{kind.code}` | {status.http} | `{status.openai_type}` | {when} |"
        table.setdefault(kind.code, row)
    return table


def test_the_table_of_errors_is_the_one_in_the_code() -> None:
    written = [line for line in section("Errors").splitlines() if line.startswith("| `")]
    assert [line for line in written if not line.startswith("| `code`")] == list(rows().values())


def test_every_accepted_field_is_described_and_no_other() -> None:
    read = first_column(section("Fields that are read"))
    idle = quoted(section("Fields that are accepted without effect"))
    assert sorted([*read, *idle]) == sorted(ChatCompletionBody.__struct_encode_fields__)


@pytest.mark.parametrize(
    ("title", "body", "unsupported"),
    [
        ("Fields of an image request", ImageGenerationBody, IMAGE_UNSUPPORTED),
        ("Fields of a speech request", SpeechBody, SPEECH_UNSUPPORTED),
    ],
)
def test_every_field_of_images_and_speech_is_described_and_no_other(
    title: str, body: type[Struct], unsupported: Mapping[str, Unsupported]
) -> None:
    text = section(title)
    table, refused = text.split("Refused unless", 1)
    idle = table.partition("Accepted without effect")[2]
    read = first_column(table)
    assert sorted([*read, *quoted(idle)]) == sorted(body.__struct_encode_fields__)
    assert unsupported.keys() <= set(quoted(refused))


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
def test_every_refused_field_is_described(field: str) -> None:
    assert field in quoted(section("Fields that are refused"))


def test_every_field_of_the_extension_is_described() -> None:
    table = section("The extension object `omnistage`")
    for field in RequestReport.__struct_fields__:
        assert f"| `{field}` |" in table
    for field in StageReport.__struct_fields__:
        assert f"`stages[].{field}`" in table


def test_every_audio_format_is_described() -> None:
    assert {kind.value for kind in AudioFormat} <= set(quoted(section("A stream")))
    audio = set(quoted(section("Audio")))
    assert {kind.value for kind in (*AudioFormat, *AudioInputFormat)} <= audio


def test_every_format_of_images_and_speech_is_described() -> None:
    assert {kind.value for kind in ImageFormat} <= set(
        quoted(section("Fields of an image request"))
    )
    assert {kind.value for kind in SpeechFormat} <= set(
        quoted(section("Fields of a speech request"))
    )


def example_of(title: str) -> str:
    example = re.search(r"```json\n(.*?)```", section(title), flags=re.DOTALL)
    assert example is not None
    return example.group(1)


def test_the_examples_of_images_and_speech_are_valid_requests() -> None:
    assert parse_image_request(example_of("Images").encode()).count == 2
    assert parse_speech_request(example_of("Speech").encode()).text == "Hello there."


def test_the_example_is_a_valid_request() -> None:
    body = json.loads(example_of("A request").replace("UklGRi…", "UklGRg=="))
    request = parse_chat_request(json.dumps(body).encode())
    assert request.conversation.audio_count == 1
