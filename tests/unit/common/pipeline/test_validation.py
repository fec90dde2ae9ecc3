"""What several fields or resources together show to be wrong, each with its exact message."""

import pytest

from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.plan import Execution
from omnistage_common.pipeline.problems import Severity
from omnistage_common.pipeline.validation import check
from unit.common.pipeline.examples import VALID, bent, found, lines_of

EDGE = "    - {from: thinker, to: talker, output: hidden, mode: Full}\n"
SPEECH = "    - {stage: talker, output: speech, modality: audio}\n"
TEXT = "    - {stage: thinker, output: text, modality: text}\n"

TOPOLOGY = [
    (
        [("    - name: talker", "    - name: thinker")],
        (
            "p.yaml:20: spec.stages[thinker].name: is `thinker` like an earlier stage (give each stage "
            "a name of its own)"
        ),
    ),
    (
        [("{name: hidden, kind: hidden_states}", "{name: text, kind: hidden_states}")],
        (
            "p.yaml:12: spec.stages[thinker].produces[text].name: is `text` like an earlier one (give "
            "each a name of its own)"
        ),
    ),
    (
        [("{name: conversation, kind: conversation}", "{name: conversaton, kind: conversation}")],
        (
            "p.yaml:9: spec.stages[thinker].consumes[conversaton].name: no request brings "
            "`conversaton` (did you mean `conversation`?; what comes from another stage is an edge)"
        ),
    ),
    (
        [("{name: conversation, kind: conversation}", "{name: conversation, kind: text}")],
        (
            "p.yaml:9: spec.stages[thinker].consumes[conversation].kind: is `text`, but the request's "
            "`conversation` is `conversation` (write `kind: conversation`)"
        ),
    ),
    (
        [("from: thinker", "from: thinkr")],
        "p.yaml:27: spec.edges[0].from: there is no stage `thinkr` (did you mean `thinker`?)",
    ),
    (
        [("to: talker", "to: vocoder")],
        "p.yaml:27: spec.edges[0].to: there is no stage `vocoder` (stages: talker, thinker)",
    ),
    (
        [("output: hidden", "output: hiddn")],
        "p.yaml:27: spec.edges[0].output: thinker makes no output `hiddn` (did you mean `hidden`?)",
    ),
    (
        [("output: hidden", "output: hidden, kind: tokens")],
        (
            "p.yaml:27: spec.edges[0].kind: is `tokens`, but thinker makes `hidden` as "
            "`hidden_states` (write `kind: hidden_states`, or leave it out)"
        ),
    ),
    (
        [("kind: hidden_states", "kind: kv_cache"), ("mode: Full", "mode: Stream")],
        (
            "p.yaml:27: spec.edges[0].mode: is `Stream`, but `kv_cache` cannot be handed over in "
            "pieces (write `mode: Full`)"
        ),
    ),
    (
        [(EDGE, EDGE + EDGE)],
        "p.yaml:28: spec.edges[1]: is the same as an earlier edge (remove it)",
    ),
    (
        [(EDGE, EDGE + "    - {from: talker, to: thinker, output: speech}\n")],
        (
            "p.yaml:28: spec.edges[1]: closes the cycle thinker -> talker -> thinker (remove an edge "
            "of it)"
        ),
    ),
    (
        [(EDGE, EDGE + "    - {from: talker, to: talker, output: speech}\n")],
        "p.yaml:28: spec.edges[1]: closes the cycle talker -> talker (remove an edge of it)",
    ),
    (
        [(SPEECH, "    - {stage: talkr, output: speech, modality: audio}\n")],
        "p.yaml:30: spec.outputs[1].stage: there is no stage `talkr` (did you mean `talker`?)",
    ),
    (
        [(SPEECH, "    - {stage: talker, output: sound, modality: audio}\n")],
        (
            "p.yaml:30: spec.outputs[1].output: talker makes no output `sound` (outputs of talker: "
            "speech)"
        ),
    ),
    (
        [(SPEECH, "    - {stage: talker, output: speech, modality: image}\n")],
        (
            "p.yaml:30: spec.outputs[1].modality: is `image`, but talker makes `speech` as `waveform` "
            "(name an output of kind `image`)"
        ),
    ),
    (
        [(SPEECH, "    - {stage: talker, output: speech}\n")],
        (
            "p.yaml:30: spec.outputs[1].modality: is left out, but `speech` is `waveform`; only a "
            "transcript, which is text, has no modality (add one of text, audio, image, video)"
        ),
    ),
    (
        [(SPEECH, SPEECH + TEXT)],
        (
            "p.yaml:31: spec.outputs[2].modality: is `text` like an earlier output (a client could "
            "not tell them apart; keep one output for each modality)"
        ),
    ),
    (
        [(TEXT, ""), (SPEECH, "    - {stage: thinker, output: text}\n")],
        (
            "p.yaml:28: spec.outputs: offers nothing that a client can ask for (give an output a "
            "`modality`)"
        ),
    ),
    (
        [(EDGE, ""), ("  edges:\n", "")],
        (
            "p.yaml:20: spec.stages[talker]: can never run: it takes nothing from the request and no "
            "edge leads to it (add `consumes` or an edge)"
        ),
    ),
    (
        [(SPEECH, "")],
        (
            "p.yaml:20: spec.stages[talker]: works for nobody: no edge and no output takes what it "
            "makes (add an edge or an output, or remove the stage)"
        ),
    ),
]


@pytest.mark.parametrize(("changes", "problem"), TOPOLOGY, ids=[row[1][:70] for row in TOPOLOGY])
def test_a_graph_that_cannot_work_is_refused(changes: list[tuple[str, str]], problem: str) -> None:
    assert problem in lines_of(bent(*changes))


def test_two_things_must_not_arrive_under_one_name() -> None:
    helper = (
        "    - {name: helper, execution: Generation, produces: [{name: hidden, kind: text}],"
        " consumes: [{name: audio, kind: waveform}], defaults: {engine: simulated}}\n  edges:\n"
    )
    changes = [
        ("  edges:\n", helper),
        (EDGE, EDGE + "    - {from: helper, to: talker, output: hidden}\n"),
    ]

    assert lines_of(bent(*changes)) == [
        (
            "p.yaml:29: spec.edges[1].output: talker already takes a `hidden` from thinker (give the "
            "producer's output another name)"
        )
    ]


PIPELINE = [
    (
        [("template: {name: omni}", "template: {name: omny}")],
        "p.yaml:45: spec.template.name: there is no PipelineTemplate `omny` (did you mean `omni`?)",
    ),
    (
        [("  template: {name: omni}\n", "")],
        ("p.yaml:44: spec: has neither `template` nor `topology` (add `template: {name: ...}` with "
        "the name of a PipelineTemplate)"),
    ),
    (
        [("runtime: {name: small-node}", "runtime: {name: big-node}")],
        ("p.yaml:49: spec.stages[thinker].runtime.name: there is no StageRuntime `big-node` "
        "(StageRuntimes: small-node)"),
    ),
    (
        [("    - name: thinker\n      runtime", "    - name: thinkers\n      runtime")],
        ("p.yaml:48: spec.stages[thinkers]: the topology has no stage `thinkers` (did you mean "
        "`thinker`?)"),
    ),
    (
        [("runtime: {name: small-node}", "stageRef: {name: shared}")],
        ("p.yaml:49: spec.stages[thinker].stageRef.name: there is no Stage `shared` (there are no "
        "Stages)"),
    ),
    (
        [("      engineArgs: {width: 3}", "    - name: thinker")],
        ("p.yaml:50: spec.stages[thinker].name: is `thinker` like an earlier entry (write one entry "
        "for each stage)"),
    ),
    (
        [("      engineArgs: {width: 3}", "      replicas: 2\n      autoscaling: {maxReplicas: 3}")],
        "p.yaml:50: spec.stages[thinker].replicas: is 2 beside `autoscaling` (keep one of them)",
    ),
    (
        [("      engineArgs: {width: 3}", "      parallelism: {tensor: 4, pipeline: 2, nodes: 3}")],
        ("p.yaml:50: spec.stages[thinker].parallelism.nodes: is 3, over which 8 devices cannot be "
        "spread evenly (make `tensor` times `pipeline` times `data` a multiple of it)"),
    ),
    (
        [("      engineArgs: {width: 3}", "      autoscaling: {minReplicas: 4, maxReplicas: 3}")],
        ("p.yaml:50: spec.stages[thinker].autoscaling.minReplicas: is 4, which is more than "
        "maxReplicas 3 (make it at most as many)"),
    ),
    (
        [("engineArgs: {width: 3}", "env: [{name: A}]")],
        "p.yaml:50: spec.stages[thinker].env[A]: has no value (add `value` or `secretKey`)",
    ),
    (
        [("engineArgs: {width: 3}", "env: [{name: A, value: x, secretKey: {name: s, key: k}}]")],
        ("p.yaml:50: spec.stages[thinker].env[A]: has both `value` and `secretKey` (keep one of "
        "them)"),
    ),
    (
        [("engineArgs: {width: 3}", "env: [{name: A, value: x}, {name: A, value: y}]")],
        ("p.yaml:50: spec.stages[thinker].env[A].name: is `A` like an earlier variable (keep one "
        "of them)"),
    ),
    (
        [("servedNames: [chat]", "servedNames: [chat, chat]")],
        "p.yaml:46: spec.model.servedNames[1]: is `chat` like an earlier name (remove it)",
    ),
    (
        [("request: 60s", "request: 0s")],
        ("p.yaml:51: spec.timeouts.request: is `0s`; no request could be served (write a longer "
        "time, e.g. `120s`)"),
    ),
    (
        [("  engine: simulated\n  engineArgs", "  engine: vllm\n  engineArgs")],
        ("p.yaml:49: spec.stages[thinker].runtime.name: names a runtime for `vllm`, but stage "
        "thinker runs on `simulated` (name a StageRuntime whose engine is `simulated`)"),
    ),
    (
        [("        engine: simulated\n  edges", "        replicas: 1\n  edges")],
        ("p.yaml:20: spec.stages[talker]: has no engine (name a `runtime`, or set "
        "`defaults.engine` in the topology)"),
    ),
    (
        [("  template: {name: omni}\n", ("  template: {name: omni}\n  topology: {stages: [{name: a, "
          "execution: Generation, produces: [{name: t, kind: text}]}], outputs: [{stage: a, "
          "output: t, modality: text}]}\n"))],
        "p.yaml:45: spec.template: is given beside `topology` (keep one of them)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "problem"), PIPELINE, ids=[row[1][:70] for row in PIPELINE])
def test_a_pipeline_that_cannot_work_is_refused(
    changes: list[tuple[str, str]], problem: str
) -> None:
    assert problem in lines_of(bent(*changes))


UNSUPPORTED = [
    (
        ("      engineArgs: {width: 3}", "      parallelism: {tensor: 2, nodes: 2}"),
        Severity.ERROR,
        ("p.yaml:50: spec.stages[thinker].parallelism.nodes: is 2; one machine is one node (remove "
        "it)"),
    ),
    (
        ("      engineArgs: {width: 3}", "      replicas: 0"),
        Severity.ERROR,
        ("p.yaml:50: spec.stages[thinker].replicas: is 0; without a replica the pipeline cannot "
        "serve (write at least 1)"),
    ),
    (
        ("      engineArgs: {width: 3}", "      autoscaling: {minReplicas: 2, maxReplicas: 3}"),
        Severity.WARNING,
        ("p.yaml:50: spec.stages[thinker].autoscaling: needs a cluster; 2 replicas will run (write "
        "`replicas` for another number)"),
    ),
    (
        ("engineArgs: {width: 3}", "env: [{name: TOKEN, secretKey: {name: s, key: k}}]"),
        Severity.WARNING,
        ("p.yaml:50: spec.stages[thinker].env[TOKEN].secretKey: names a Secret, which only a "
        "cluster has; the variable stays unset (add `--set stages.thinker.env.TOKEN=...`)"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "severity", "line"), UNSUPPORTED, ids=str)
def test_what_this_release_does_not_do_is_said(
    change: tuple[str, str], severity: Severity, line: str
) -> None:
    (problem,) = found(bent(change))

    assert str(problem) == line
    assert problem.severity is severity


def test_an_output_that_nobody_takes_is_a_warning() -> None:
    unused = "{name: hidden, kind: hidden_states}\n        - {name: codes, kind: codec_frames}"

    (problem,) = found(bent(("{name: hidden, kind: hidden_states}", unused)))

    assert problem.severity is Severity.WARNING
    assert str(problem) == (
        "p.yaml:13: spec.stages[thinker].produces[codes]: is taken by nobody (add an edge or an "
        "output)"
    )


def test_a_secret_that_the_command_line_gives_is_no_problem() -> None:
    text = bent(("engineArgs: {width: 3}", "env: [{name: TOKEN, secretKey: {name: s, key: k}}]"))

    assert lines_of(text, "stages.thinker.env.TOKEN=abc") == []


def test_a_template_is_checked_even_when_no_pipeline_uses_it() -> None:
    template = VALID.split("---\n")[0].replace("to: talker", "to: nobody")

    assert any("there is no stage `nobody`" in line for line in lines_of(template))


def test_two_resources_of_one_kind_and_name_are_refused() -> None:
    parts = VALID.split("---\n")

    assert lines_of("---\n".join([*parts, parts[1]])) == [
        (
            "p.yaml:55: metadata.name: there is a StageRuntime `small-node` already, at p.yaml:34 "
            "(give one of them another name)"
        )
    ]


def test_one_model_name_is_served_by_one_pipeline() -> None:
    parts = VALID.split("---\n")
    other = parts[2].replace("{name: chat}", "{name: other}")

    assert lines_of("---\n".join([*parts, other])) == [
        (
            "p.yaml:58: spec.model.servedNames[0]: the model `chat` is served by the pipeline chat "
            "already (serve each name by one pipeline)"
        )
    ]


def test_problems_of_a_shared_template_are_listed_once_however_many_pipelines_use_it() -> None:
    parts = bent(("to: talker", "to: nobody")).split("---\n")
    other = parts[2].replace("chat", "other")

    lines = lines_of("---\n".join([*parts, other]))

    assert len([line for line in lines if "`nobody`" in line]) == 1


SHARED = """\
---
apiVersion: omnistage.io/v1alpha1
kind: Stage
metadata: {name: voice}
spec:
  execution: Generation
  receives: [{name: hidden, kind: hidden_states}]
  engine: simulated
  produces: [{name: speech, kind: waveform}]
  replicas: 2
"""
USES_SHARED = (
    "  timeouts: {request: 60s}\n",
    "    - name: talker\n      stageRef: {name: voice}\n",
)


def with_shared(*changes: tuple[str, str]) -> str:
    text = bent(USES_SHARED) + SHARED
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_a_shared_stage_that_fits_is_no_problem() -> None:
    assert lines_of(with_shared()) == []


def test_a_stage_may_have_a_number_of_replicas_beside_its_autoscaler() -> None:
    both = ("  replicas: 2\n", "  replicas: 2\n  autoscaling: {maxReplicas: 3}\n")

    (warning,) = lines_of(with_shared(both))

    assert "needs a cluster" in warning


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("  execution: Generation\n  receives", "  execution: Diffusion\n  receives"),
            ("p.yaml:52: spec.stages[talker].stageRef.name: names a Stage that is "
            f"{Execution.DIFFUSION.value}, but talker is Generation (name another Stage)"),
        ),
        (
            ("produces: [{name: speech, kind: waveform}]", "produces: [{name: sound, kind: waveform}]"),
            ("p.yaml:52: spec.stages[talker].stageRef.name: names a Stage that produces sound "
            "(waveform), but talker produces speech (waveform) (make the Stage voice and the "
            "topology agree)"),
        ),
        (
            ("  receives: [{name: hidden, kind: hidden_states}]\n", ""),
            ("p.yaml:52: spec.stages[talker].stageRef.name: names a Stage that receives no such "
            "input, but talker receives hidden (hidden_states, Full) (write that under `receives` "
            "of the Stage voice)"),
        ),
        (
            ("kind: hidden_states}]\n", "kind: hidden_states, mode: Stream, contextFrames: 2}]\n"),
            ("p.yaml:52: spec.stages[talker].stageRef.name: names a Stage that receives hidden "
            "(hidden_states, Stream, contextFrames 2), but talker receives hidden (hidden_states, "
            "Full) (write that under `receives` of the Stage voice)"),
        ),
        (
            ("stageRef: {name: voice}\n", "stageRef: {name: voice}\n      replicas: 3\n"),
            ("p.yaml:53: spec.stages[talker].replicas: is set beside `stageRef` (set it in the "
            "Stage voice)"),
        ),
        (
            ("  replicas: 2\n", "  autoscaling: {minReplicas: 4, maxReplicas: 3}\n"),
            ("p.yaml:62: spec.autoscaling.minReplicas: is 4, which is more than maxReplicas 3 "
            "(make it at most as many)"),
        ),
    ],
)  # fmt: skip
def test_a_shared_stage_must_fit_and_stands_for_itself(
    change: tuple[str, str], problem: str
) -> None:
    assert problem in lines_of(with_shared(change))


def test_a_valid_file_has_no_problems() -> None:
    assert check(load_text(VALID, file="p.yaml")) == ()
