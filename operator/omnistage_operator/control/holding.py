"""Does the live object hold what is intended? The question that keeps an idle operator from writing.

An intent is a part of an object: every field in it must be in the live object, and what else is there
belongs to others (defaults, status, fields of other managers). The API server does not give back what
it was sent letter for letter, so this comparison knows what it rewrites:

    absent = null, "" , {} , []     it drops what is empty
    1 = 1000m, 1Gi = 1024Mi         amounts, in the fields that hold amounts
    lists with keys                 by key and in any order; others may have added entries
    other lists                     same length, same order, entry by entry
    selectors                       whole: a further label in one is another selector

`false` and `0` are not the same as absent: behind most of those fields stands a default that is
neither. Intents leave out what they do not mean.

Where a rule is missing the answer is "does not hold" and costs a write, never a missed one; the
executor then remembers what a write could not change.
"""

from typing import Any, Final

from omnistage_common.cluster.manifests import Manifest
from omnistage_operator.control.list_keys import entry_key, keys_of_list
from omnistage_operator.control.quantities import same_quantity

__all__ = ["differences", "holds"]

_WHOLE: Final = frozenset(
    {
        "selector",
        "podSelector",
        "namespaceSelector",
        "labelSelector",
        "nodeSelector",
        "matchLabels",
    }
)
"""Maps that stand for one value: a further entry makes another value of them."""

_AMOUNTS: Final = frozenset({"requests", "limits"})
"""Maps whose values are quantities."""

_AMOUNT: Final = frozenset(
    {
        ("emptyDir", "sizeLimit"),
        ("resourceFieldRef", "divisor"),
        ("target", "averageValue"),
        ("target", "value"),
    }
)
"""(parent field, field) that is a quantity."""

_SETS: Final = frozenset({"finalizers"})
"""Lists whose order means nothing and to which others add."""


_Trail = tuple["_Trail", str] | None
"""The way to a field, last step first; put together only when somebody wants to read it."""


def holds(live: Manifest | None, intent: Manifest) -> bool:
    """Whether every field of the intent is in the live object."""
    return not differences(live, intent)


def differences(live: Manifest | None, intent: Manifest) -> frozenset[str]:
    """Paths of the intent's fields that the live object does not hold; `.` when it is not there."""
    if live is None:
        return frozenset({"."})
    found: list[_Trail] = []
    _compare_fields(live, intent, _Place(found, "", "", None))
    return frozenset(map(_shown, found))


class _Place:
    """Where in the object the comparison is."""

    __slots__ = ("around", "found", "name", "trail")

    def __init__(self, found: list[_Trail], around: str, name: str, trail: _Trail) -> None:
        self.found = found
        """Where differences are noted."""
        self.around = around
        """The field around this one; entries of lists are not counted."""
        self.name = name
        self.trail = trail

    def differs(self) -> None:
        """Notes that this field is not held."""
        self.found.append(self.trail)


def _compare(live: Any, intent: Any, place: _Place) -> None:
    if isinstance(intent, dict) and isinstance(live, dict):
        _compare_fields(live, intent, place)
    elif isinstance(intent, list) and isinstance(live, list):
        _compare_entries(live, intent, place)
    elif isinstance(live, bool) or isinstance(intent, bool):
        if live is not intent:
            place.differs()
    elif live != intent and not (_is_empty(intent) and _is_empty(live)):
        _compare_amounts(live, intent, place)


def _compare_fields(live: Manifest, intent: Manifest, place: _Place) -> None:
    if place.name in _WHOLE and any(
        name not in intent and not _is_empty(value) for name, value in live.items()
    ):
        place.differs()
    for name, wanted in intent.items():
        there = live.get(name)
        if there is not None and type(there) is type(wanted) and there == wanted:
            continue  # most of an object is as it was sent
        _compare(there, wanted, _Place(place.found, place.name, name, (place.trail, name)))


def _compare_entries(live: list[Any], intent: list[Any], place: _Place) -> None:
    keys = keys_of_list(place.around, place.name)
    if keys is not None:
        found = {entry_key(entry, keys): entry for entry in live}
        for wanted in intent:
            key = entry_key(wanted, keys)
            _compare(found.get(key), wanted, _entry(place, "/".join(map(str, key))))
    elif place.name in _SETS:
        if any(wanted not in live for wanted in intent):
            place.differs()
    elif len(live) != len(intent):
        place.differs()
    else:
        for number, (there, wanted) in enumerate(zip(live, intent, strict=True)):
            _compare(there, wanted, _entry(place, str(number)))


def _compare_amounts(live: Any, intent: Any, place: _Place) -> None:
    is_amount = place.around in _AMOUNTS or (place.around, place.name) in _AMOUNT
    if not (is_amount and same_quantity(live, intent)):
        place.differs()


def _entry(place: _Place, shown: str) -> _Place:
    return _Place(place.found, place.around, place.name, (place.trail, shown))


def _is_empty(value: Any) -> bool:
    """Whether the API server may drop it; false and 0 stay."""
    return value is None or (isinstance(value, str | dict | list) and not value)


def _shown(trail: _Trail) -> str:
    steps: list[str] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    return ".".join(reversed(steps))
