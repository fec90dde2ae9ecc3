"""Small rules: rates, back-off, the fence, the lease, owners of fields, kinds, what changes concern."""

import math
from typing import Any

import pytest

from fakes.controlled import config_map, key, pod
from omnistage_common.cluster.errors import WriteFenced
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import CONFIG_MAPS, DEPLOYMENTS, KINDS, STAGES, kind_of
from omnistage_common.cluster.manifests import (
    controller_of,
    is_deleted,
    owner_uids,
)
from omnistage_common.cluster.rates import Backoff, BackoffRule, TokenBucket
from omnistage_common.errors import SetupError
from omnistage_operator.control.controlling import label_keys, own_key, owner_keys
from omnistage_operator.control.leadership import Candidacy, Claim, LeaseRecord, LeaseTimings
from omnistage_operator.control.list_keys import entry_key, keys_of_list
from omnistage_operator.control.ownership import FieldManager, managers_of
from omnistage_operator.planning.plans import owner_reference


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=10, burst=3)

    assert [bucket.book(0) for _ in range(5)] == [0, 0, 0, pytest.approx(0.1), pytest.approx(0.2)]
    assert bucket.book(0.3) == 0
    assert [bucket.book(100) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]


def test_back_off_doubles_from_5_ms_to_its_cap() -> None:
    rule = BackoffRule()

    assert [rule.after(failures) for failures in (1, 2, 3, 10)] == [0.005, 0.01, 0.02, 2.56]
    assert rule.after(10_000) == rule.most_s


def test_back_off_is_counted_per_key_and_forgotten() -> None:
    backoff: Backoff[str] = Backoff(BackoffRule(first_s=1, most_s=3))

    assert [backoff.fail("a") for _ in range(3)] == [1, 2, 3]
    assert backoff.fail("b") == 1
    backoff.forget("a")
    backoff.forget("never-seen")
    assert (backoff.fail("a"), backoff.failures("b"), len(backoff)) == (1, 1, 2)


def test_a_fence_opens_until_an_instant_and_closes_by_itself() -> None:
    now = 0.0
    fence = Fence(clock=lambda: now)
    with pytest.raises(WriteFenced, match="does not hold the lease"):
        fence.check()

    fence.open_until(10)
    now = 9.0
    assert fence.check() == 1
    now = 10.0
    assert not fence.is_open
    fence.open_until(20)
    fence.close()
    assert fence.remaining() == 0


def test_without_election_the_fence_is_always_open() -> None:
    assert Fence.always_open().check() == math.inf


def held_by(holder: str, renewed: str = "1") -> LeaseRecord:
    """What a lease says."""
    return LeaseRecord(holder=holder, duration_s=15, renewed=renewed)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([(None, 0)], Claim.CREATE),
        ([(held_by("me"), 0)], Claim.RENEW),
        ([(held_by(""), 0)], Claim.TAKE),
        ([(held_by("other"), 0)], Claim.WAIT),
        ([(held_by("other"), 0), (held_by("other"), 14.9)], Claim.WAIT),
        ([(held_by("other"), 0), (held_by("other"), 15)], Claim.TAKE),
        (
            [(held_by("other"), 0), (held_by("other", "2"), 14), (held_by("other", "2"), 28)],
            Claim.WAIT,
        ),
        (
            [(held_by("other"), 0), (held_by("other", "2"), 14), (held_by("other", "2"), 29)],
            Claim.TAKE,
        ),
        ([(held_by("me"), 0), (held_by("other", "2"), 20)], Claim.WAIT),
    ],
)
def test_a_candidate_takes_what_is_free_or_was_silent_for_the_whole_lease(
    seen: list[tuple[LeaseRecord | None, float]], expected: Claim
) -> None:
    candidacy = Candidacy("me")

    assert [candidacy.claim(record, now) for record, now in seen][-1] is expected


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_a_holder_must_stop_before_another_can_start(times: tuple[float, float, float]) -> None:
    lease_s, renew_s, retry_s = times

    with pytest.raises(SetupError, match="must be longer"):
        LeaseTimings(lease_s=lease_s, renew_s=renew_s, retry_s=retry_s)


def test_owners_of_a_field_are_read_from_the_field_sets() -> None:
    def entry(manager: str, operation: str, fields: dict[str, Any], **more: str) -> dict[str, Any]:
        return {"manager": manager, "operation": operation, "fieldsV1": fields, **more}

    live = config_map("one")
    live["metadata"]["managedFields"] = [
        entry("omnistage-operator", "Apply", {"f:spec": {"f:engineArgs": {}}}),
        entry("kubectl", "Update", {"f:spec": {"f:replicas": {}}}, subresource="scale"),
        entry("odd", "Update", {}),
    ]

    assert managers_of(live, "spec", "replicas") == (
        FieldManager(name="kubectl", operation="Update", subresource="scale"),
    )
    assert managers_of(live, "spec", "nothing") == ()
    assert managers_of(config_map("bare"), "spec", "replicas") == ()


def test_every_kind_is_found_by_its_manifests() -> None:
    for kind in KINDS:
        assert kind_of({"apiVersion": kind.api_version, "kind": kind.kind}) is kind
    with pytest.raises(SetupError, match="KINDS"):
        kind_of({"apiVersion": "v1", "kind": "Secret"})


def test_kinds_are_named_as_people_name_them() -> None:
    assert str(CONFIG_MAPS) == "configmaps"
    assert str(DEPLOYMENTS) == "deployments.apps"
    assert str(key("one")) == "default/one"
    assert str(key("node", "")) == "node"


def test_a_change_concerns_itself_its_controller_or_whom_a_label_names() -> None:
    stage = {
        "apiVersion": STAGES.api_version,
        "kind": "Stage",
        "metadata": {"name": "thinker", "namespace": "default", "uid": "s"},
    }
    child = pod("p", labels={"omnistage.io/stage": "talker"}, owner=stage)

    assert list(own_key(child)) == [key("p")]
    assert list(owner_keys(STAGES)(child)) == [key("thinker")]
    assert list(owner_keys(DEPLOYMENTS)(child)) == []
    assert list(owner_keys(STAGES)(pod("free"))) == []
    assert list(label_keys("omnistage.io/stage")(child)) == [key("talker")]
    assert list(label_keys("omnistage.io/stage")(pod("free"))) == []


def test_an_owner_reference_names_the_controller() -> None:
    owner = config_map("owner")
    owner["metadata"]["uid"] = "u"
    child = pod("child")
    child["metadata"]["ownerReferences"] = [{"uid": "x"}, owner_reference(owner)]

    found = controller_of(child)

    assert found is not None
    assert (found.kind, found.name, found.uid) == ("ConfigMap", "owner", "u")
    assert owner_uids(child) == ("x", "u")
    assert not is_deleted(child)


def test_lists_have_the_keys_of_their_place() -> None:
    assert keys_of_list("containers", "ports") == ("containerPort", "protocol")
    assert keys_of_list("ingress", "ports") is None
    assert keys_of_list("anything", "env") == ("name",)
    assert entry_key({"port": 1}, ("port", "protocol")) == (1, "TCP")
    assert entry_key("text", ("name",)) == ("text",)
