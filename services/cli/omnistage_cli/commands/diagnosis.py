"""A pipeline's status in words: what is ready, what is not, why, and what to do.

Pure: from the object as a cluster has it to lines for a terminal.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.text import Text

from omnistage_common.ids import StageName
from omnistage_common.pipeline.remedies import remedies_of
from omnistage_common.pipeline.resources.status import (
    ConditionStatus,
    GatewayStatus,
    InferencePipelineStatus,
    PipelineStageStatus,
)

__all__ = ["diagnosis_lines", "is_ready"]

_WIDTH: Final = 96
_INDENT: Final = "      "
_FINE: Final = frozenset({"Ready", "ScaledToZero"})
_WAITS: Final = frozenset({"Progressing", "NotRoutable"})
"""Reasons of a stage that waits for others, once its own replicas are ready."""
_GOOD, _BAD, _WAITING = "green", "red", "yellow"


def is_ready(pipeline: Mapping[str, Any], status: InferencePipelineStatus) -> bool:
    """Whether the spec as it is now is served; what was said of an older one does not count."""
    seen = status.observed_generation == pipeline["metadata"].get("generation")
    return seen and any(
        each.type == "Ready" and each.status is ConditionStatus.TRUE for each in status.conditions
    )


def diagnosis_lines(
    pipeline: Mapping[str, Any],
    status: InferencePipelineStatus,
    words: Mapping[StageName, str] | None = None,
) -> Iterator[Text]:
    """Everything that is known of a pipeline, for people.

    Args:
        pipeline: The object.
        status: Its status, read.
        words: What stages that load their models have said last.
    """
    yield from _head(pipeline, status)
    if not status.conditions:
        yield Text(f"{_INDENT}no operator has looked at it yet", _BAD)
        yield from _remedies("is the operator running, and does it watch this namespace?")
        return
    yield from _graph(status)
    for stage in status.stages:
        yield from _stage(stage, (words or {}).get(StageName(stage.name), ""))
    yield from _routing(status)


def _head(pipeline: Mapping[str, Any], status: InferencePipelineStatus) -> Iterator[Text]:
    metadata = pipeline["metadata"]
    ready = is_ready(pipeline, status)
    yield Text.assemble(
        (f"{metadata['namespace']}/{metadata['name']}", "bold"),
        " is ",
        ("ready", _GOOD) if ready else ("not ready", _BAD),
        f" ({status.stages_ready or '0/0'} stages)",
    )
    if status.current_revision is not None:
        moving = status.target_revision not in {None, status.current_revision}
        wanted = f", on the way to {status.target_revision}" if moving else ""
        yield Text(f"  revision {status.current_revision} serves{wanted}")
    if status.observed_generation != metadata.get("generation"):
        yield Text("  its newest change was not looked at yet", _WAITING)


def _graph(status: InferencePipelineStatus) -> Iterator[Text]:
    for each in status.conditions:
        wrong = each.type == "GraphValid" and each.status is ConditionStatus.FALSE
        taken = each.type == "Ready" and each.reason == "NameTaken"
        if wrong or taken:
            yield Text.assemble(("  ✘ ", _BAD), ("the pipeline", "bold"), f"  {each.reason}")
            yield from _wrapped(each.message)
            yield from _remedies(*remedies_of(each.reason))


def _stage(stage: PipelineStageStatus, words: str) -> Iterator[Text]:
    fine = stage.reason in _FINE
    waits = stage.reason in _WAITS and stage.ready >= stage.desired
    mark = ("  ✔ ", _GOOD) if fine else ("  … ", _WAITING) if waits else ("  ✘ ", _BAD)
    yield Text.assemble(
        mark,
        (stage.name, "bold"),
        f"  {stage.ready}/{stage.desired} ready",
        "" if fine or waits else f"  {stage.reason or 'Unknown'}",
    )
    if not fine:
        yield from _wrapped(stage.message)
        yield from _wrapped(words)
    if not fine and not waits:
        yield from _remedies(*remedies_of(stage.reason))


def _routing(status: InferencePipelineStatus) -> Iterator[Text]:
    for gateway in status.gateways:
        yield _gateway(gateway, status)
    for each in status.conditions:
        if each.type == "Routable" and each.status is not ConditionStatus.TRUE:
            yield Text.assemble(("  ✘ ", _BAD), ("gateways", "bold"), f"  {each.reason}")
            yield from _wrapped(each.message)


def _gateway(gateway: GatewayStatus, status: InferencePipelineStatus) -> Text:
    serves = gateway.serving is not None and gateway.serving == status.current_revision
    says = f"serves {gateway.serving}" if gateway.serving else "serves nothing yet"
    left = f", finishes {', '.join(gateway.in_use)}" if gateway.in_use else ""
    return Text.assemble(
        ("  ✔ ", _GOOD) if serves else ("  … ", _WAITING),
        (gateway.name, "bold"),
        f"  {says}{left}",
    )


def _wrapped(message: str) -> Iterator[Text]:
    for line in textwrap.wrap(message, _WIDTH):
        yield Text(f"{_INDENT}{line}")


def _remedies(*remedies: str) -> Iterator[Text]:
    for remedy in remedies:
        for index, line in enumerate(textwrap.wrap(remedy, _WIDTH)):
            yield Text.assemble(_INDENT, ("→ " if not index else "  ", "cyan"), line)
