"""Errors as an OpenAI client sees them."""

import json

import pytest

from omnistage_common.errors import (
    STATUS,
    Draining,
    InvalidRequest,
    ModelNotFound,
    OmnistageError,
    TooManyRequests,
)
from omnistage_gateway.openai.errors import ErrorResponse, error_response


def header(response: ErrorResponse, name: bytes) -> bytes | None:
    return dict(response.headers).get(name)


@pytest.mark.parametrize("kind", STATUS, ids=lambda kind: kind.__name__)
def test_every_error_has_its_row_of_the_table(kind: type[OmnistageError]) -> None:
    response = error_response(kind("it broke", field="model"))
    assert response.status == STATUS[kind].http
    assert json.loads(response.body) == {
        "error": {
            "message": "it broke",
            "type": STATUS[kind].openai_type,
            "param": "model",
            "code": kind.code,
        }
    }
    assert header(response, b"content-type") == b"application/json"
    assert header(response, b"content-length") == b"%d" % len(response.body)


def test_a_subclass_without_a_row_is_shown_as_its_parent() -> None:
    class Odd(ModelNotFound):
        """A class that the table does not know."""

    assert error_response(Odd("no such model")).status == 404


def test_param_is_null_when_no_field_is_at_fault() -> None:
    assert json.loads(error_response(Draining("leaving")).body)["error"]["param"] is None


@pytest.mark.parametrize(
    ("seconds", "value"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.2, b"2"), (30, b"30")]
)
def test_retry_after_is_in_whole_seconds_rounded_up(seconds: float, value: bytes) -> None:
    response = error_response(TooManyRequests("full", retry_after=seconds))
    assert header(response, b"retry-after") == value


def test_there_is_no_retry_after_where_trying_again_is_pointless() -> None:
    assert header(error_response(InvalidRequest("wrong")), b"retry-after") is None
    assert header(error_response(TooManyRequests("full", retry_after=None)), b"retry-after") is None
