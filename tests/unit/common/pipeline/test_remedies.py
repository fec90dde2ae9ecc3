"""What to do about each reason."""

import pytest

from omnistage_common.pipeline.remedies import remedies_of
from omnistage_common.pipeline.resources.status import StageReason


@pytest.mark.parametrize("reason", StageReason, ids=lambda reason: reason.value)
def test_every_reason_but_ready_has_a_remedy_in_sentences(reason: StageReason) -> None:
    remedies = remedies_of(reason.value)

    assert bool(remedies) is (reason is not StageReason.READY)
    assert all(each.endswith(".") and "  " not in each for each in remedies)


@pytest.mark.parametrize("reason", [None, "OfALaterRelease"])
def test_a_reason_that_this_release_does_not_know_has_none(reason: str | None) -> None:
    assert remedies_of(reason) == ()
