"""Whatever a file holds, it is either resolved or its problems are listed: nothing else happens."""

import re

from hypothesis import given
from hypothesis import strategies as st

from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.problems import Problem, ResourceProblems, Severity
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.validation import check
from unit.common.pipeline.examples import VALID

WORDS = sorted(set(re.findall(r"[\w.:/@-]+", VALID)))
STRANGE = [
    "",
    "0",
    "-1",
    "1.5",
    "null",
    "true",
    "[]",
    "{}",
    "*x",
    "&x y",
    "!!int z",
    "'",
    "ü",
    "stageRef",
]
CHANGES = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from([*WORDS, *STRANGE]), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)  # fmt: skip


def mangled(changes: list[tuple[str, str, int]]) -> str:
    """The example with some of its words replaced by others."""
    text = VALID
    for old, new, skip in changes:
        places = [match.span() for match in re.finditer(re.escape(old), text)]
        if places:
            start, end = places[skip % len(places)]
            text = text[:start] + new + text[end:]
    return text


def errors(text: str) -> list[Problem]:
    found = check(load_text(text, file="p.yaml"))
    return [problem for problem in found if problem.severity is Severity.ERROR]


def raised_by(text: str) -> tuple[Problem, ...]:
    """What keeps the only pipeline from being resolved; empty when it is."""
    try:
        resolve(load_text(text, file="p.yaml"))
    except ResourceProblems as caught:
        return caught.problems
    return ()


@given(CHANGES)
def test_a_mangled_file_resolves_or_has_its_problems_listed(
    changes: list[tuple[str, str, int]],
) -> None:
    text = mangled(changes)
    listed = errors(text)
    raised = raised_by(text)

    assert all(each in listed or each.field == "pipeline" for each in raised)
    assert raised or not listed


@given(st.text(max_size=200))
def test_any_text_at_all_is_read_without_a_crash(text: str) -> None:
    assert all(problem.message for problem in check(load_text(text, file="p.yaml")))


@given(CHANGES)
def test_every_problem_has_a_line_of_the_file(changes: list[tuple[str, str, int]]) -> None:
    text = mangled(changes)

    assert all(1 <= each.line <= text.count("\n") + 1 for each in errors(text))
