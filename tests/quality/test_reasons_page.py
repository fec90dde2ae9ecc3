"""The page that people read when a pipeline is not ready has every reason, and what to do about it."""

import re
from collections.abc import Mapping
from typing import Final

import pytest

from omnistage_common.pipeline.remedies import remedies_of
from omnistage_common.pipeline.resources.status import StageReason
from quality.repository import ROOT

PAGE: Final = ROOT / "docs" / "how-to" / "why-is-my-pipeline-not-ready.md"
ROW: Final = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def rows() -> Mapping[str, str]:
    """Reason -> what the page says to do about it."""
    text = PAGE.read_text(encoding="utf-8")
    return {match[1]: match[3] for match in ROW.finditer(text)}


@pytest.mark.parametrize("reason", StageReason, ids=lambda each: each.value)
def test_every_reason_has_the_remedies_that_doctor_gives(
    reason: StageReason, rows: Mapping[str, str]
) -> None:
    assert rows[reason.value] == ("<br>".join(remedies_of(reason.value)) or "Nothing.")


def test_no_row_is_about_a_reason_that_is_not_given(rows: Mapping[str, str]) -> None:
    of_pipelines = {"NameTaken", "NoGateway"}

    assert rows.keys() - {reason.value for reason in StageReason} == of_pipelines
