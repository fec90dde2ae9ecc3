"""A plan as text: YAML whose values carry their origins, or rows of path, value and origin.

The YAML reads back as the very plan, without its origins. An origin stands where it was decided: at
a value, or once at the list or mapping that came from one place as a whole.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from omnistage_common.pipeline.origins import origin_of
from omnistage_common.pipeline.plan import Origin, PipelinePlan

__all__ = ["PlanLine", "PlanRow", "plan_lines", "plan_rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanLine:
    """A line of YAML."""

    text: str
    origin: Origin | None
    """Where the value that begins here came from; None where that was said further up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRow:
    """A value of the plan."""

    path: str
    value: str
    """As JSON."""
    origin: Origin | None
    """None for what is computed from the other values, as revisions are."""


def plan_lines(plan: PipelinePlan) -> Iterator[PlanLine]:
    """The plan as lines of YAML, in the order of its fields."""
    return _mapping(_plain(plan), "", "", plan.origins)


def plan_rows(plan: PipelinePlan) -> Iterator[PlanRow]:
    """The values of the plan that people set, one in each row."""
    return _rows(_plain(plan), "", plan.origins)


def _plain(plan: PipelinePlan) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plan))
    return {key: value for key, value in data.items() if key != "origins"}


def _mapping(
    data: Mapping[str, Any], path: str, indent: str, origins: Mapping[str, Origin]
) -> Iterator[PlanLine]:
    for key, value in data.items():
        here = f"{path}.{key}" if path else key
        head = f"{indent}{_scalar(key)}:"
        origin = origins.get(here)
        if not value or not isinstance(value, (dict, list)) or _is_flat(value):
            yield PlanLine(text=f"{head} {_scalar(value)}", origin=origin)
            continue
        yield PlanLine(text=head, origin=origin)
        if isinstance(value, dict):
            yield from _mapping(value, here, f"{indent}  ", origins)
        else:
            yield from _items(value, here, f"{indent}  ", origins)


def _items(
    data: list[Any], path: str, indent: str, origins: Mapping[str, Origin]
) -> Iterator[PlanLine]:
    for item in data:
        here = _item_path(item, path)
        if not any(known.startswith(f"{here}.") for known in origins):
            yield PlanLine(text=f"{indent}- {_scalar(item)}", origin=None)
            continue
        lines = _mapping(item, here, f"{indent}  ", origins)
        first = next(lines)
        yield PlanLine(text=f"{indent}- {first.text.lstrip()}", origin=first.origin)
        yield from lines


def _is_flat(value: Any) -> bool:
    """Whether a value is a list of scalars, which reads best on one line."""
    return isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value)


def _item_path(item: Any, path: str) -> str:
    """Stages are noted by name; nothing else in a list has notes of its own."""
    return f"{path}.{item['name']}" if isinstance(item, dict) and "name" in item else f"{path}.-"


def _scalar(value: Any) -> str:
    """A value on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _rows(data: Mapping[str, Any], path: str, origins: Mapping[str, Origin]) -> Iterator[PlanRow]:
    for key, value in data.items():
        here = f"{path}.{key}" if path else key
        inside = f"{here}."
        if key == "stages" and not path:
            for stage in value:
                fields = {name: each for name, each in stage.items() if name != "name"}
                yield from _rows(fields, f"stages.{stage['name']}", origins)
        elif isinstance(value, dict) and any(known.startswith(inside) for known in origins):
            yield from _rows(value, here, origins)
        else:
            yield PlanRow(
                path=here,
                value=json.dumps(value, ensure_ascii=False),
                origin=origin_of(origins, here),
            )
