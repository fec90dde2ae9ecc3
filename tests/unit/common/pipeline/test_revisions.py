"""A revision is the hash of what makes pods: no more, no less."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from omnistage_common.ids import EngineName, OutputName, Revision, StageName
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import (
    Execution,
    InputPlan,
    Limits,
    ProducePlan,
    ReceivePlan,
    StagePlan,
)
from omnistage_common.pipeline.revisions import stage_revision
from unit.common.pipeline.examples import VALID, bent, plan_of

STAGE = StagePlan(
    name=StageName("thinker"),
    execution=Execution.AUTOREGRESSIVE,
    engine=EngineName("vllm"),
    engine_args={"max_model_len": 2048, "gpu_memory_utilization": 0.9},
    model="hf://org/name@main",
    consumes=(InputPlan(name=OutputName("conversation"), kind=PayloadKind.CONVERSATION),),
    produces=(ProducePlan(name=OutputName("text"), kind=PayloadKind.TEXT),),
    replicas=1,
    limits=Limits(max_running=8, max_queued=64, slab_bytes=2**26),
    env={"A": "1"},
    revision=Revision(""),
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
ARGS = st.dictionaries(st.text(min_size=1, max_size=8), JSON, max_size=5)


def revision(stage: StagePlan = STAGE, pod: Mapping[str, object] | None = None) -> Revision:
    return stage_revision(stage, pod or {})


def test_revisions_stay_what_they_are_from_release_to_release() -> None:
    """A change here rolls every pod of everybody at the next upgrade: it must be meant."""
    assert revision() == "701c3a13c0"
    assert plan_of().revision == "7e27a4ee2a"


@pytest.mark.parametrize(
    "changes",
    [
        {"execution": Execution.GENERATION},
        {"engine": EngineName("simulated")},
        {"engine_args": {"max_model_len": 2049, "gpu_memory_utilization": 0.9}},
        {"model": "hf://org/name@other"},
        {"consumes": ()},
        {"produces": (ProducePlan(name=OutputName("text"), kind=PayloadKind.TOKENS),)},
        {"limits": Limits(max_running=9, max_queued=64, slab_bytes=2**26)},
        {"limits": replace(STAGE.limits, device_slab_bytes=2**26)},
        {"env": {"A": "2"}},
        {"env": {}},
        {"receives": (ReceivePlan(name=OutputName("codes"), kind=PayloadKind.CODEC_FRAMES),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_makes_a_pod_changes_its_revision(changes: dict[str, Any]) -> None:
    assert revision(replace(STAGE, **changes)) != revision()


def test_what_the_runtime_adds_to_a_pod_changes_its_revision() -> None:
    assert revision(pod={"image": "a"}) != revision()
    assert revision(pod={"image": "a"}) != revision(pod={"image": "b"})


def test_what_it_is_called_does_not() -> None:
    assert revision(replace(STAGE, name=StageName("other"))) == revision()


@given(st.integers(1, 1024), st.text(max_size=10))
def test_neither_replicas_nor_an_old_revision_change_it(replicas: int, old: str) -> None:
    assert revision(replace(STAGE, replicas=replicas, revision=Revision(old))) == revision()


@given(ARGS, st.randoms())
def test_the_order_of_keys_does_not_matter(args: dict[str, Any], chance: Any) -> None:
    keys = list(args)
    chance.shuffle(keys)
    shuffled = {key: args[key] for key in keys}

    one, other = replace(STAGE, engine_args=args), replace(STAGE, engine_args=shuffled)
    assert revision(one) == revision(other)


@given(ARGS, st.text(min_size=1, max_size=8), JSON)
def test_any_engine_argument_changes_it(args: dict[str, Any], key: str, value: Any) -> None:
    before = {name: each for name, each in args.items() if name != key}
    after = {**before, key: value}

    one, other = replace(STAGE, engine_args=before), replace(STAGE, engine_args=after)
    assert revision(one) != revision(other)


@given(st.integers(-(2**53), 2**53))
def test_a_whole_float_is_the_integer_that_a_cluster_makes_of_it(number: int) -> None:
    whole, fractional = {"x": number}, {"x": float(number)}

    assert revision(pod=whole) == revision(pod=fractional)


def test_true_is_not_one() -> None:
    assert revision(pod={"x": True}) != revision(pod={"x": 1})


def test_a_revision_can_stand_in_the_name_of_a_deployment() -> None:
    assert len(revision()) == 10
    assert set(revision()) <= set("0123456789abcdef")


def test_scaling_changes_no_revision_of_a_pipeline() -> None:
    scaled = plan_of(VALID, "stages.thinker.replicas=7")

    assert scaled.revision == plan_of().revision
    assert [s.revision for s in scaled.stages] == [s.revision for s in plan_of().stages]


def test_where_a_value_came_from_changes_no_revision() -> None:
    same = plan_of(VALID, "stages.thinker.engineArgs.width=3", "timeouts.request=60s")

    assert same.origins != plan_of().origins
    assert same.revision == plan_of().revision


def test_only_the_stage_that_changed_gets_a_new_revision() -> None:
    before, after = plan_of(), plan_of(VALID, "stages.thinker.engineArgs.width=4")

    assert after.revision != before.revision
    changed = [
        a.name for a, b in zip(after.stages, before.stages, strict=True) if a.revision != b.revision
    ]
    assert changed == ["thinker"]


@pytest.mark.parametrize(
    "change",
    [
        ("  engine: simulated\n  engineArgs", "  engine: simulated\n  image: x/y:1\n  engineArgs"),
        ("  engine: simulated\n  engineArgs", "  engine: simulated\n  sharedMemory: 1Gi\n  engineArgs"),
        ("  engine: simulated\n  engineArgs", "  engine: simulated\n  nodeSelector: {a: b}\n  engineArgs"),
        ("engineArgs: {width: 3}", "env: [{name: T, secretKey: {name: s, key: k}}]\n      engineArgs: {width: 3}"),
    ],
)  # fmt: skip
def test_pod_settings_that_the_plan_does_not_hold_count_too(change: tuple[str, str]) -> None:
    before, after = plan_of(), plan_of(bent(change))

    assert after.stages[0].revision != before.stages[0].revision
    assert after.revision != before.revision


def test_pipelines_that_share_a_stage_see_one_revision_of_it() -> None:
    renamed = plan_of(bent(("metadata: {name: chat}", "metadata: {name: other}")))

    assert [s.revision for s in renamed.stages] == [s.revision for s in plan_of().stages]
    assert renamed.revision != plan_of().revision
