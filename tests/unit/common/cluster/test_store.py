"""The cache of one kind: the newest state wins, and objects are found in every way that was asked for."""

import random
from typing import Any

import pytest

from fakes.controlled import key, pod
from omnistage_common.cluster.manifests import Manifest, Uid, key_of, labels_of
from omnistage_common.cluster.store import Store


def at(version: int | str, name: str = "one", **labels: str) -> Manifest:
    """A state of an object."""
    manifest = pod(name, labels=labels)
    manifest["metadata"]["resourceVersion"] = str(version)
    return manifest


def owned(version: int, name: str, *owners: str) -> Manifest:
    """A state of an object that others own."""
    manifest = at(version, name)
    manifest["metadata"]["ownerReferences"] = [{"uid": uid} for uid in owners]
    return manifest


def test_a_later_state_replaces_an_earlier_one_and_never_the_reverse() -> None:
    store = Store()
    first, second = at(9), at(10)

    assert store.put(first) == (None, first)
    assert store.put(second) == (first, second)
    assert store.put(first) is None
    assert store.put(at(10)) is None
    assert store.get(key("one")) is second


def test_a_deletion_is_of_the_state_that_it_saw() -> None:
    store = Store()
    anew = at(20)
    store.put(at(9))
    store.put(anew)

    assert store.remove(at(15)) is None
    assert store.remove(at(21)) == (anew, None)
    assert store.remove(at(22)) is None
    assert len(store) == 0


@pytest.mark.parametrize("version", ["", "abc", "-1", "1.0"])
def test_versions_that_are_no_numbers_are_taken_as_they_come(version: str) -> None:
    store = Store()
    store.put(at(5))

    assert store.put(at(version)) is not None


def test_a_list_removes_what_it_lacks_but_nothing_newer_and_nothing_of_others() -> None:
    store = Store()
    for version, name in ((1, "stays"), (2, "goes"), (30, "newer")):
        store.put(at(version, name))
    other = pod("elsewhere", namespace="other")
    other["metadata"]["resourceVersion"] = "3"
    store.put(other)

    gone = store.replace(lambda found: found.namespace == "default", {key("stays")}, version=20)

    assert [before and before["metadata"]["name"] for before, _ in gone] == ["goes"]
    keys = store.keys()
    assert {found.name for found in keys} == {"stays", "newer", "elsewhere"}


def test_objects_are_found_by_each_of_their_owners() -> None:
    store = Store()
    store.put(owned(1, "a", "x", "y"))
    store.put(owned(2, "b", "y"))
    store.put(owned(3, "a", "y"))

    assert store.owned_by(Uid("x")) == []
    assert {m["metadata"]["name"] for m in store.owned_by(Uid("y"))} == {"a", "b"}


def test_an_index_follows_its_objects() -> None:
    store = Store({"tier": lambda manifest: labels_of(manifest).values()})
    store.put(at(1, tier="front"))
    store.put(at(2, tier="back"))

    assert store.find("tier", "front") == []
    assert len(store.find("tier", "back")) == 1
    store.remove(at(3))
    assert store.find("tier", "back") == []
    with pytest.raises(KeyError):
        store.find("colour", "red")


def test_namespaces_are_kept_apart() -> None:
    store = Store()
    store.put(pod("one"))
    store.put(pod("one", namespace="other"))

    assert [key_of(found) for found in store.in_namespace("other")] == [key("one", "other")]
    assert key("one") in store
    assert len(list(store.all())) == 2


@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_order_the_newest_states_are_left_and_no_index_entry_is_stale(
    seed: int,
) -> None:
    chance = random.Random(seed)  # noqa: S311
    states = [
        owned(version, f"o{chance.randrange(5)}", str(chance.randrange(3)))
        for version in range(1, 200)
    ]
    newest: dict[Any, Manifest] = {key_of(state): state for state in states}
    store = Store()

    for state in chance.sample(states, len(states)):
        store.put(state)

    assert {key_of(found): found for found in store.all()} == newest
    for state in newest.values():
        store.remove(state)
    assert all(not index for index in store._indexes.values())
