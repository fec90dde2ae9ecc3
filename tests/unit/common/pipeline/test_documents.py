"""YAML is read as a cluster reads it, within bounds, and everything wrong has its line."""

import pytest

from omnistage_common.pipeline.documents import read_documents, read_value


def data_of(text: str) -> object:
    sources, problems = read_documents(text, file="f")
    assert problems == ()
    assert len(sources) == 1
    return sources[0].data


def problems_of(text: str) -> list[str]:
    return [str(problem) for problem in read_documents(text, file="f")[1]]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("8", 8),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("2E5", 200_000.0),
        (".5", 0.5),
        ("true", True),
        ("off", False),
        ("~", None),
        ("", None),
        ('"8"', "8"),
        ("120s", "120s"),
        ("2024-01-02", "2024-01-02"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("[1, a]", [1, "a"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("package://x", "package://x"),
    ],
)
def test_a_scalar_is_read_as_a_cluster_reads_it(written: str, value: object) -> None:
    assert read_value(written, file="f") == (value, ())


def test_every_value_knows_its_line_across_documents() -> None:
    sources, _ = read_documents("a: 1\n---\nb:\n  - c: 2\n  - d:\n      3\n", file="f")

    first, second = sources
    assert first.line_of(("a",)) == 1
    assert second.line_of(("b", 0, "c")) == 4
    assert second.line_of(("b", 1, "d")) == 5


def test_a_value_that_was_not_written_has_the_line_of_what_surrounds_it() -> None:
    (source,), _ = read_documents("a:\n  b: 1\n", file="f")

    assert source.line_of(("a", "missing", "deeper")) == 1


def test_list_items_are_called_by_their_name_where_they_have_one() -> None:
    (source,), _ = read_documents("s:\n- {name: x, v: 1}\n- {v: 2}\n", file="f")

    assert source.field_of(("s", 0, "v")) == "s[x].v"
    assert source.field_of(("s", 1, "v")) == "s[1].v"


def test_anchors_and_merges_are_followed_and_own_keys_win() -> None:
    text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nlist: [*b, *b]\n"

    assert data_of(text) == {
        "base": {"x": 1, "y": 2},
        "use": {"y": 3, "x": 1},
        "list": [{"x": 1, "y": 2}, {"x": 1, "y": 2}],
    }


def test_empty_documents_are_left_out() -> None:
    sources, problems = read_documents("---\n---\na: 1\n---\n# only a comment\n", file="f")

    assert [source.data for source in sources] == [{"a": 1}]
    assert problems == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3: a: is given twice, first on line 1 (keep one of them)"),
        ("s:\n- {name: n, k: 1, k: 2}\n", "f:2: s[n].k: is given twice, first on line 2 (keep one of them)"),
        ("a: {1: x}\n", "f:1: a: has the key `1`, which is not text (quote it)"),
        ("a: {[x]: 1}\n", "f:1: a: has the key `a structure`, which is not text (quote it)"),
        ("a: .nan\n", "f:1: a: is `.nan` (write a finite number)"),
        ("a: -.inf\n", "f:1: a: is `-.inf` (write a finite number)"),
        ("a: 1e999\n", "f:1: a: is `1e999` (write a finite number)"),
        ("a: {<<: 3}\n", "f:1: a: merges `<<` something that is no mapping (name one)"),
        (
            "a: !!python/name:os.system x\n",
            ("f:1: a: has the value `x` with the tag `tag:yaml.org,2002:python/name:os.system` "
            "(write plain YAML)"),
        ),
        ("a: !secret x\n", "f:1: a: has the value `x` with the tag `!secret` (write plain YAML)"),
        ("a: [1, 2\nb: 3\n", "f:2: is not YAML: expected ',' or ']', but got ':' (while parsing a flow sequence)"),
        ("a: *nobody\n", "f:1: is not YAML: found undefined alias 'nobody'"),
        ("a: 1\nb: \x07\n", "f:2: has the character U+0007, which YAML forbids (remove it)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


def test_what_stands_before_a_syntax_error_is_read() -> None:
    sources, problems = read_documents("a: 1\n---\nb: [\n", file="f")

    assert [source.data for source in sources] == [{"a": 1}]
    assert len(problems) == 1


def test_aliases_that_multiply_are_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]

    (problem,) = problems_of("\n".join(lines))

    assert "is too large or too deep (at most 50000 values and 32 levels" in problem


def test_an_alias_to_itself_is_stopped() -> None:
    (problem,) = problems_of("a: &a [*a]\n")

    assert "is too large or too deep" in problem


def test_nesting_without_end_is_stopped() -> None:
    assert problems_of("[" * 5_000) != []


def test_a_merge_of_itself_is_stopped() -> None:
    (problem,) = problems_of("a: &a\n  <<: *a\n  b: &c {<<: *a}\n")

    assert "is too large or too deep" in problem
