"""A pipeline's stages, written down as `Stage` objects of their own."""

from pathlib import Path

import pytest

from omnistage_common.ids import StageName
from omnistage_common.pipeline.assignments import assignment_of
from omnistage_common.pipeline.loading import Resources, load_file, load_text
from omnistage_common.pipeline.plan import TransportChoice
from omnistage_common.pipeline.problems import ResourceProblems
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.resources import (
    NamespacedMetadata,
    Reference,
    Stage,
    StageRuntime,
    StageSpec,
)
from omnistage_common.pipeline.standing import (
    StagePlacement,
    StandingStage,
    resolve_stage_alone,
    stand_alone,
)

SHIPPED = sorted((Path(__file__).parents[4] / "deploy" / "pipelines").glob("*.yaml"))

RUNTIME = """\
apiVersion: omnistage.io/v1alpha1
kind: StageRuntime
metadata: {name: small-node}
spec:
  engine: simulated
  image: registry.example/stage:1
  env: [{name: LEVEL, value: low}, {name: TOKEN, secretKey: {name: hub, key: token}}]
  engineArgs: {steps: 6, width: 2}
"""
PIPELINE = """\
---
apiVersion: omnistage.io/v1alpha1
kind: InferencePipeline
metadata: {name: chat, namespace: team}
spec:
  topology:
    stages:
      - name: thinker
        execution: Autoregressive
        consumes: [{name: conversation, kind: conversation}]
        produces: [{name: text, kind: text}, {name: codes, kind: codec_frames}]
        defaults: {engine: simulated, replicas: 2}
      - name: talker
        execution: Generation
        produces: [{name: speech, kind: waveform}]
    edges:
      - {from: thinker, to: talker, output: codes, mode: Stream, chunk: {contextFrames: 7}}
    outputs:
      - {stage: thinker, output: text, modality: text}
      - {stage: talker, output: speech, modality: audio}
  stages:
    - name: talker
      runtime: {name: small-node}
      env: [{name: LEVEL, value: high}]
      engineArgs: {width: 3}
      autoscaling: {minReplicas: 2, maxReplicas: 4}
  timeouts: {drain: 1s500ms}
  transfer: {transport: TCP}
"""


def placed(text: str) -> dict[StageName, StagePlacement]:
    return {each.name: each for each in stand_alone(load_text(text, file="p")).stages}


def alone(spec: StageSpec | None, resources: Resources, name: str = "own") -> StandingStage:
    assert spec is not None
    stage = Stage(metadata=NamespacedMetadata(name=name), spec=spec)
    return resolve_stage_alone(stage, runtime_of(spec, resources))


def runtime_of(spec: StageSpec, resources: Resources) -> StageRuntime | None:
    found = [each.resource for each in resources.runtimes]
    named = spec.runtime.name if spec.runtime is not None else None
    return next((each for each in found if each.metadata.name == named), None)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_stage_by_itself_has_the_revision_that_it_has_in_its_pipeline(path: Path) -> None:
    resources = load_file(path)

    pipeline = stand_alone(resources)

    assert pipeline.plan == resolve(resources)
    for placement, planned in zip(pipeline.stages, pipeline.plan.stages, strict=True):
        standing = alone(placement.spec, resources)
        assert standing.assignment.stage.revision == planned.revision, planned.name


def test_its_replicas_are_told_what_they_are_told_locally() -> None:
    resources = load_text(RUNTIME + PIPELINE, file="p")
    pipeline = stand_alone(resources)

    for placement in pipeline.stages:
        standing = alone(placement.spec, resources, name=placement.name)
        told = assignment_of(pipeline.plan, placement.name)
        assert standing.assignment == told, placement.name


def test_grace_transport_and_inlets_are_part_of_the_stage() -> None:
    talker = placed(RUNTIME + PIPELINE)[StageName("talker")].spec

    assert talker is not None
    assert talker.drain == "1s500ms"
    assert talker.transfer.transport is TransportChoice.TCP
    assert [(each.name, each.context_frames) for each in talker.receives] == [("codes", 7)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("drain: 1s500ms", "drain: 2s"),
        ("transport: TCP", "transport: Stream"),
        ("contextFrames: 7", "contextFrames: 8"),
        ("mode: Stream, chunk: {contextFrames: 7}", "mode: Full"),
        ("image: registry.example/stage:1", "image: registry.example/stage:2"),
        ("{name: hub, key: token}", "{name: hub, key: other}"),
        ("engineArgs: {width: 3}", "engineArgs: {width: 4}"),
    ],
)
def test_whatever_its_pods_depend_on_changes_its_revision(old: str, new: str) -> None:
    text = RUNTIME + PIPELINE
    assert text.count(old) == 1
    before, after = (
        stand_alone(load_text(each, file="p")).plan for each in (text, text.replace(old, new))
    )

    talker = StageName("talker")
    assert before.stage(talker).revision != after.stage(talker).revision
    assert before.revision != after.revision


def test_the_number_of_replicas_and_a_name_do_not() -> None:
    spec = placed(RUNTIME + PIPELINE)[StageName("thinker")].spec
    resources = load_text(RUNTIME + PIPELINE, file="p")
    assert spec is not None

    revisions = {
        alone(
            spec.model_copy(update={"replicas": count}), resources, name
        ).assignment.stage.revision
        for count, name in [(1, "one"), (0, "one"), (9, "two")]
    }

    assert len(revisions) == 1


def test_secrets_stay_references() -> None:
    resources = load_text(RUNTIME + PIPELINE, file="p")
    talker = alone(placed(RUNTIME + PIPELINE)[StageName("talker")].spec, resources)

    assert [each.name for each in talker.secrets] == ["TOKEN"]
    assert talker.assignment.stage.env == {"LEVEL": "high"}


def test_it_is_known_who_wrote_how_many_replicas_there_are() -> None:
    stages = placed(RUNTIME + PIPELINE)
    thinker, talker = stages[StageName("thinker")], stages[StageName("talker")]

    assert thinker.replicas_written
    assert thinker.spec is not None
    assert thinker.spec.replicas == 2
    assert not talker.replicas_written
    assert talker.spec is not None
    assert talker.spec.replicas is None
    assert talker.spec.autoscaling is not None
    nobody = placed(RUNTIME + PIPELINE.replace(", replicas: 2", ""))[StageName("thinker")]
    assert not nobody.replicas_written


def test_no_replicas_are_possible_in_a_cluster() -> None:
    text = PIPELINE.replace("autoscaling: {minReplicas: 2, maxReplicas: 4}", "replicas: 0")

    spec = placed(RUNTIME + text)[StageName("talker")].spec

    assert spec is not None
    assert spec.replicas == 0


def test_a_runtime_that_is_not_there_is_named() -> None:
    spec = placed(RUNTIME + PIPELINE)[StageName("talker")].spec
    assert spec is not None

    with pytest.raises(ResourceProblems, match="there is no StageRuntime `small-node`"):
        resolve_stage_alone(Stage(metadata=NamespacedMetadata(name="x"), spec=spec), None)


def test_an_engine_must_be_that_of_the_runtime() -> None:
    resources = load_text(RUNTIME + PIPELINE, file="p")
    spec = placed(RUNTIME + PIPELINE)[StageName("thinker")].spec
    assert spec is not None
    wrong = spec.model_copy(update={"engine": "vllm", "runtime": Reference(name="small-node")})

    with pytest.raises(ResourceProblems, match="names a runtime for `simulated`"):
        alone(wrong, resources)


def test_a_shared_stage_is_named_and_keeps_its_own_revision() -> None:
    own = RUNTIME + PIPELINE
    talker = placed(own)[StageName("talker")].spec
    assert talker is not None
    voice = Stage(metadata=NamespacedMetadata(name="voice", namespace="team"), spec=talker)
    first, last = own.index("      runtime:"), own.index("  timeouts:")
    used = own[:first] + "      stageRef: {name: voice}\n" + own[last:]
    loaded = load_text(used, file="p")
    pipeline = loaded.pipelines[0].resource
    runtime = loaded.runtimes[0].resource

    standing = stand_alone(Resources.of(pipeline, runtime, voice))

    shared = {each.name: each for each in standing.stages}[StageName("talker")]
    assert (shared.shared, shared.spec) == ("voice", None)
    expected = resolve_stage_alone(voice, runtime).assignment.stage.revision
    assert standing.plan.stage(StageName("talker")).revision == expected


def test_memory_of_the_device_is_written_where_there_is_any() -> None:
    text = RUNTIME + PIPELINE.replace(
        "replicas: 2}", "replicas: 2, limits: {deviceSlabBytes: 1Gi}}"
    )
    stages = placed(text)
    thinker, talker = stages[StageName("thinker")].spec, stages[StageName("talker")].spec
    assert thinker is not None
    assert thinker.limits is not None
    assert talker is not None
    assert talker.limits is not None

    assert thinker.limits.device_slab_bytes == str(2**30)
    assert talker.limits.device_slab_bytes is None
    resolved = alone(thinker, load_text(text, file="p"))
    assert resolved.assignment.stage.limits.device_slab_bytes == 2**30
