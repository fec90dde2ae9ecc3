"""Layers become final values, each of which knows where it came from."""

from collections.abc import Iterator
from itertools import permutations

import msgspec
import pytest

from omnistage_common.errors import InvalidPipeline, status_of
from omnistage_common.ids import ModelName, PipelineName, StageName
from omnistage_common.pipeline.loading import Resources, load_text
from omnistage_common.pipeline.origins import origin_of
from omnistage_common.pipeline.plan import (
    EdgeMode,
    Limits,
    Origin,
    PipelinePlan,
    StagePlan,
    Timeouts,
    decode_plan,
    encode_plan,
)
from omnistage_common.pipeline.problems import ResourceProblems
from omnistage_common.pipeline.resolver import resolve
from unit.common.pipeline.examples import VALID, bent, plan_of

THINKER = StageName("thinker")
TALKER = StageName("talker")


def thinker(text: str = VALID, *overrides: str) -> StagePlan:
    return plan_of(text, *overrides).stage(THINKER)


def origin(path: str, text: str = VALID, *overrides: str) -> Origin | None:
    return plan_of(text, *overrides).origins.get(path)


def test_engine_arguments_merge_by_key_and_later_layers_win() -> None:
    plan = plan_of(VALID, "stages.thinker.engineArgs.height=9")

    assert plan.stage(THINKER).engine_args == {
        "steps": 6,
        "outputs": {"text": {"text": "hi"}},
        "width": 3,
        "height": 9,
    }
    path = "stages.thinker.engine_args"
    assert plan.origins[f"{path}.outputs"] is Origin.TEMPLATE
    assert plan.origins[f"{path}.steps"] is Origin.RUNTIME
    assert plan.origins[f"{path}.width"] is Origin.PIPELINE
    assert plan.origins[f"{path}.height"] is Origin.COMMAND_LINE


@pytest.mark.parametrize(
    ("changes", "overrides", "value", "source"),
    [
        ([], [], "2", Origin.RUNTIME),
        ([('    - {name: THREADS, value: "2"}\n', "    []\n")], [], "1", Origin.TEMPLATE),
        (
            [("engineArgs: {width: 3}", 'env: [{name: THREADS, value: "3"}]')],
            [],
            "3",
            Origin.PIPELINE,
        ),
        ([], ["stages.thinker.env.THREADS=4"], "4", Origin.COMMAND_LINE),
    ],
)
def test_environment_variables_merge_by_name(
    changes: list[tuple[str, str]], overrides: list[str], value: str, source: Origin
) -> None:
    plan = plan_of(bent(*changes), *overrides)

    assert plan.stage(THINKER).env == {"THREADS": value}
    assert plan.origins["stages.thinker.env.THREADS"] is source


def test_a_secret_leaves_no_value_of_a_lower_layer_behind() -> None:
    text = bent(("engineArgs: {width: 3}", "env: [{name: THREADS, secretKey: {name: s, key: k}}]"))

    assert thinker(text).env == {}
    assert origin("stages.thinker.env.THREADS", text) is None


@pytest.mark.parametrize(
    ("changes", "overrides", "value", "source"),
    [
        ([], [], 1, Origin.BUILT_IN),
        ([("        model: package", "        replicas: 2\n        model: package")], [], 2, Origin.TEMPLATE),
        ([("      engineArgs: {width: 3}", "      replicas: 3")], [], 3, Origin.PIPELINE),
        ([("      engineArgs: {width: 3}", "      autoscaling: {minReplicas: 4, maxReplicas: 9}")], [], 4, Origin.PIPELINE),
        ([("      engineArgs: {width: 3}", "      replicas: 3")], ["stages.thinker.replicas=5"], 5, Origin.COMMAND_LINE),
    ],
)  # fmt: skip
def test_the_topmost_layer_decides_the_replicas(
    changes: list[tuple[str, str]], overrides: list[str], value: int, source: Origin
) -> None:
    plan = plan_of(bent(*changes), *overrides)

    assert plan.stage(THINKER).replicas == value
    assert plan.origins["stages.thinker.replicas"] is source


def test_each_limit_comes_from_its_own_layer() -> None:
    plan = plan_of(VALID, "stages.thinker.limits.slabBytes=3Mi")

    assert plan.stage(THINKER).limits == Limits(max_running=8, max_queued=256, slab_bytes=3 * 2**20)
    path = "stages.thinker.limits"
    assert plan.origins[f"{path}.max_running"] is Origin.TEMPLATE
    assert plan.origins[f"{path}.max_queued"] is Origin.BUILT_IN
    assert plan.origins[f"{path}.slab_bytes"] is Origin.COMMAND_LINE
    assert plan.origins[f"{path}.device_slab_bytes"] is Origin.BUILT_IN


def test_memory_of_the_device_is_there_where_a_layer_says_so() -> None:
    plan = plan_of(VALID, "stages.thinker.limits.deviceSlabBytes=2Gi")

    assert plan.stage(THINKER).limits.device_slab_bytes == 2 * 2**30
    assert plan.stage(TALKER).limits.device_slab_bytes == 0


@pytest.mark.parametrize(
    ("stage", "overrides", "model", "source"),
    [
        (THINKER, [], "package://small", Origin.TEMPLATE),
        (TALKER, [], "hf://org/big@main", Origin.PIPELINE),
        (TALKER, ["model.source=hf://org/new@main"], "hf://org/new@main", Origin.COMMAND_LINE),
        (THINKER, ["model.source=hf://org/new@main"], "package://small", Origin.TEMPLATE),
        (THINKER, ["stages.thinker.model=file:///x"], "file:///x", Origin.COMMAND_LINE),
    ],
)
def test_a_stage_keeps_its_own_model_and_the_others_take_the_pipelines(
    stage: StageName, overrides: list[str], model: str, source: Origin
) -> None:
    plan = plan_of(VALID, *overrides)

    assert plan.stage(stage).model == model
    assert plan.origins[f"stages.{stage}.model"] is source


def test_a_stage_without_any_model_has_an_empty_one() -> None:
    plan = plan_of(bent(('source: "hf://org/big@main", ', "")))

    assert plan.stage(TALKER).model == ""
    assert plan.origins["stages.talker.model"] is Origin.BUILT_IN


@pytest.mark.parametrize(
    ("changes", "overrides", "timeouts", "source"),
    [
        ([], [], Timeouts(request=60, drain=30), Origin.PIPELINE),
        ([("  timeouts: {request: 60s}\n", "")], [], Timeouts(request=120, drain=30), Origin.BUILT_IN),
        ([], ["timeouts.request=1m30s"], Timeouts(request=90, drain=30), Origin.COMMAND_LINE),
        ([("{request: 60s}", "{request: 120s}")], [], Timeouts(request=120, drain=30), Origin.PIPELINE),
    ],
)  # fmt: skip
def test_durations_become_seconds(
    changes: list[tuple[str, str]], overrides: list[str], timeouts: Timeouts, source: Origin
) -> None:
    plan = plan_of(bent(*changes), *overrides)

    assert plan.timeouts == timeouts
    assert plan.origins["timeouts.request"] is source
    assert plan.origins["timeouts.drain"] is Origin.BUILT_IN


def test_a_pipeline_without_served_names_is_served_under_its_own() -> None:
    plan = plan_of(bent((", servedNames: [chat]", "")))

    assert plan.served_names == (ModelName("chat"),)
    assert plan.origins["served_names"] is Origin.BUILT_IN


def test_an_edge_carries_the_kind_that_its_producer_makes() -> None:
    (edge,) = plan_of().edges

    assert edge.kind.value == "hidden_states"
    assert edge.mode is EdgeMode.FULL


def test_producers_stand_before_their_consumers_whatever_the_template_says() -> None:
    head, rest = VALID.split("  stages:\n", 1)
    stages, tail = rest.split("  edges:\n", 1)
    first, second = stages.split("    - name: talker\n")
    turned = f"{head}  stages:\n    - name: talker\n{second}{first}  edges:\n{tail}"

    assert [stage.name for stage in plan_of(turned).stages] == [THINKER, TALKER]


INLINE = """\
apiVersion: omnistage.io/v1alpha1
kind: InferencePipeline
metadata: {name: own, namespace: team}
spec:
  topology:
    stages:
      - name: only
        execution: Generation
        consumes: [{name: conversation, kind: conversation}]
        produces: [{name: text, kind: text}]
        defaults: {engine: simulated, engineArgs: {steps: 1}}
    outputs: [{stage: only, output: text, modality: text}]
"""


def test_an_inline_topology_comes_from_the_pipeline() -> None:
    plan = plan_of(INLINE)

    assert plan.namespace == "team"
    assert plan.origins["namespace"] is Origin.PIPELINE
    assert plan.origins["stages.only.engine_args.steps"] is Origin.PIPELINE
    assert plan.origins["outputs"] is Origin.PIPELINE


SHARED = """\
---
apiVersion: omnistage.io/v1alpha1
kind: Stage
metadata: {name: voice}
spec:
  execution: Generation
  receives: [{name: hidden, kind: hidden_states}]
  runtime: {name: small-node}
  produces: [{name: speech, kind: waveform}]
  replicas: 2
  engineArgs: {rate: 24000}
"""


def test_a_shared_stage_stands_for_itself() -> None:
    text = bent(
        ("      engineArgs: {width: 3}\n", "    - {name: talker, stageRef: {name: voice}}\n"),
        ("        engine: simulated\n  edges", "        engineArgs: {mine: 1}\n  edges"),
    )

    talker = plan_of(text + SHARED).stage(TALKER)

    assert talker.replicas == 2
    assert talker.engine_args == {"steps": 6, "width": 2, "rate": 24_000}
    assert talker.limits == Limits(max_running=16, max_queued=256, slab_bytes=2**26)


def test_the_pipeline_is_chosen_by_name_where_there_are_several() -> None:
    parts = VALID.split("---\n")
    resources = load_text("---\n".join([*parts, parts[2].replace("chat", "other")]), file="p")

    assert resolve(resources, pipeline=PipelineName("other")).name == "other"


@pytest.mark.parametrize(
    ("names", "wanted", "problem"),
    [
        (["chat", "other"], None, "there are several pipelines (name one of chat, other)"),
        (["chat", "other"], "othr", "there is no InferencePipeline `othr` (did you mean `other`?)"),
        ([], None, "there is no InferencePipeline (add one)"),
        ([], "chat", "there is no InferencePipeline `chat` (there are no pipelines)"),
    ],
)
def test_a_choice_that_leads_nowhere_is_refused(
    names: list[str], wanted: str | None, problem: str
) -> None:
    *shared, pipeline = VALID.split("---\n")
    resources = load_text(
        "---\n".join([*shared, *(pipeline.replace("chat", name) for name in names)]), file="p"
    )

    with pytest.raises(ResourceProblems) as caught:
        resolve(resources, pipeline=PipelineName(wanted) if wanted else None)

    assert caught.value.message == f"pipeline: {problem}"


def test_a_broken_pipeline_does_not_keep_its_neighbour_from_resolving() -> None:
    parts = VALID.split("---\n")
    broken = parts[2].replace("chat", "broken").replace("name: omni", "name: nothing")
    resources = load_text("---\n".join([*parts, broken]), file="p")

    assert resolve(resources, pipeline=PipelineName("chat")).name == "chat"


def test_every_error_of_a_pipeline_is_raised_at_once_and_warnings_are_not() -> None:
    text = bent(
        ("mode: Full", "mode: Full, chunk: {}"),
        ("request: 60s", "request: 0s"),
        ("      engineArgs: {width: 3}", "      autoscaling: {maxReplicas: 3}"),
    )

    with pytest.raises(ResourceProblems) as caught:
        plan_of(text)

    assert [problem.line for problem in caught.value.problems] == [27, 51]
    assert status_of(caught.value) == status_of(InvalidPipeline(""))
    assert caught.value.message.count("\n") == 1


@pytest.mark.parametrize(
    "change", [("mode: Full", "mode: Ful"), ("steps: 6", "steps: 6, steps: 7")]
)
def test_a_file_with_problems_of_its_own_gives_no_plan(change: tuple[str, str]) -> None:
    with pytest.raises(ResourceProblems):
        plan_of(bent(change))


def test_resources_made_in_python_resolve_like_those_from_a_file() -> None:
    loaded = load_text(VALID, file="p")

    made = Resources.of(
        *(each.resource for each in loaded.templates),
        *(each.resource for each in loaded.runtimes),
        *(each.resource for each in loaded.pipelines),
    )

    assert resolve(made) == resolve(loaded)


def test_the_order_of_documents_changes_nothing() -> None:
    parts = VALID.split("---\n")
    plan = encode_plan(plan_of())

    for order in permutations(parts):
        assert encode_plan(plan_of("---\n".join(order))) == plan


def test_a_plan_survives_its_journey_as_json() -> None:
    plan = plan_of(VALID, "stages.thinker.engineArgs.outputs.text.count=1")

    assert decode_plan(encode_plan(plan)) == plan


def leaves(node: object, path: str = "") -> Iterator[str]:
    """Paths of all values of a plan, with stages by name."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    else:
        yield path


def values_of(plan: PipelinePlan) -> dict[str, object]:
    data: dict[str, object] = msgspec.json.decode(encode_plan(plan))
    stages = data["stages"]
    assert isinstance(stages, list)
    data["stages"] = {stage.pop("name"): stage for stage in stages}
    return {key: value for key, value in data.items() if key != "origins"}


def test_every_value_that_somebody_can_set_has_an_origin_and_every_origin_a_value() -> None:
    plan = plan_of(VALID, "stages.thinker.engineArgs.outputs.text.count=1")
    paths = list(leaves(values_of(plan)))
    computed_or_empty = ("revision", ".env", ".engine_args")

    unknown = [p for p in paths if origin_of(plan.origins, p) is None]
    stale = [p for p in plan.origins if not any(f"{each}.".startswith(f"{p}.") for each in paths)]

    assert [p for p in unknown if not p.endswith(computed_or_empty)] == []
    assert stale == []
