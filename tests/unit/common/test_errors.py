"""The error tree and its table: complete, in step with each other and with what is written of them."""

import inspect
import re

import grpc
import pytest

from omnistage_common import errors
from omnistage_common.errors import (
    MAX_FOREIGN_TEXT,
    STATUS,
    EngineFailed,
    OmnistageError,
    RequestError,
    ServerError,
    TooManyRequests,
    UnavailableError,
    error_from_code,
    status_of,
    truncated,
)


def tree(kind: type[OmnistageError] = OmnistageError) -> list[type[OmnistageError]]:
    """A class of the tree and all below it."""
    below = [found for child in kind.__subclasses__() for found in tree(child)]
    return [kind, *below] if kind.__module__ == errors.__name__ else below


KINDS = tree()
LEAVES = [kind for kind in KINDS if not kind.__subclasses__()]
DRAWN = re.compile(r"^    ((?:[│ ] {3})*)[├└]── (\w+)", re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_of_the_tree_has_a_row(kind: type[OmnistageError]) -> None:
    assert kind in STATUS


def test_the_table_has_no_row_for_anything_else() -> None:
    assert set(STATUS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_names_statuses_that_exist(kind: type[OmnistageError]) -> None:
    row = STATUS[kind]

    assert row.grpc in grpc.StatusCode.__members__
    assert 400 <= row.http < 600
    assert row.openai_type
    assert row.reason.isalpha()


@pytest.mark.parametrize("kind", KINDS)
def test_client_faults_are_4xx_and_ours_are_5xx(kind: type[OmnistageError]) -> None:
    client = issubclass(kind, RequestError | TooManyRequests)

    assert (STATUS[kind].http < 500) is client


def test_a_class_without_a_row_has_that_of_its_nearest_ancestor() -> None:
    class OutOfMemory(EngineFailed):
        """Known to one engine only."""

    assert status_of(OutOfMemory("no memory left")) == STATUS[EngineFailed]


@pytest.mark.parametrize("kind", LEAVES)
def test_every_leaf_comes_back_from_its_code(kind: type[OmnistageError]) -> None:
    error = error_from_code(kind.code, "why", field="where", retry_after=2.5)

    assert type(error) is kind
    assert (error.message, error.field, error.retry_after) == ("why", "where", 2.5)
    assert str(error) == "why"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LEAVES])
def test_a_base_class_comes_back_as_something_with_the_same_status(
    kind: type[OmnistageError],
) -> None:
    back = error_from_code(kind.code, "why")

    assert status_of(back).http == status_of(kind("why")).http


def test_an_unknown_code_is_a_server_error() -> None:
    assert type(error_from_code("of a later release", "why")) is ServerError


def test_codes_of_leaves_are_unique() -> None:
    codes = [kind.code for kind in LEAVES]

    assert len(codes) == len(set(codes))


def test_the_drawing_in_the_docstring_is_the_tree() -> None:
    parents = {0: "OmnistageError"}
    drawn = {}
    for match in DRAWN.finditer(inspect.getdoc(errors) or ""):
        depth = len(match[1]) // 4 + 1
        drawn[match[2]] = parents[depth - 1]
        parents[depth] = match[2]

    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in KINDS[1:] if kind.__base__}


def test_every_class_is_exported() -> None:
    assert {kind.__name__ for kind in KINDS} <= set(errors.__all__)


def test_what_may_succeed_later_says_when_unless_told_otherwise() -> None:
    assert UnavailableError("full").retry_after == 1.0
    assert UnavailableError("full", retry_after=None).retry_after is None
    assert EngineFailed("broke").retry_after is None


@pytest.mark.parametrize("length", [0, MAX_FOREIGN_TEXT])
def test_foreign_text_that_is_short_enough_stays_as_it_is(length: int) -> None:
    assert truncated("x" * length) == "x" * length


def test_longer_foreign_text_ends_in_an_ellipsis_at_the_limit() -> None:
    text = truncated("x" * (MAX_FOREIGN_TEXT + 1))

    assert len(text) == MAX_FOREIGN_TEXT
    assert text.endswith("x…")
