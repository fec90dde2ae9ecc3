"""A file gives its resources, or every problem at once with line, field, value and remedy."""

from pathlib import Path

import pytest

from omnistage_common.errors import InvalidPipeline, status_of
from omnistage_common.pipeline.documents import MAX_FILE_BYTES
from omnistage_common.pipeline.loading import (
    Resources,
    UnreadableFile,
    load_file,
    load_files,
    load_text,
)
from omnistage_common.pipeline.resources import ClusterMetadata, StageRuntime, StageRuntimeSpec
from unit.common.pipeline.examples import VALID, bent, lines_of

NAMES = "use lower-case letters, digits and `-`; start and end with a letter or digit"
DURATIONS = "write whole numbers with units, e.g. `120s`, `1m30s` or `500ms`"

INVALID = [
    (
        ("metadata: {name: chat}", "metadata: {name: Chat}"),
        f"p.yaml:43: metadata.name: is `Chat`, which has the wrong form ({NAMES})",
    ),
    (
        ("      engineArgs: {width: 3}", "      engineArg: {width: 3}"),
        "p.yaml:50: spec.stages[thinker].engineArg: unknown field (did you mean `engineArgs`?)",
    ),
    (
        ("  timeouts: {request: 60s}", "  frobnicate: 1"),
        ("p.yaml:51: spec.frobnicate: unknown field (known fields: model, rollout, stages, "
        "streaming, template, timeouts, topology, transfer)"),
    ),
    (
        ("  timeouts: {request: 60s}", "  timeouts: {request: 60}"),
        f"p.yaml:51: spec.timeouts.request: must be text, not `60` ({DURATIONS})",
    ),
    (
        ("  timeouts: {request: 60s}", "  timeouts: {request: 1.5s}"),
        f"p.yaml:51: spec.timeouts.request: is `1.5s`, which has the wrong form ({DURATIONS})",
    ),
    (
        ("  timeouts: {request: 60s}", "  timeouts: 60s"),
        "p.yaml:51: spec.timeouts: must be a mapping, not `60s`",
    ),
    (
        ("  timeouts: {request: 60s}", "  streaming: {chunked: maybe}"),
        "p.yaml:51: spec.streaming.chunked: must be true or false, not `maybe`",
    ),
    (
        ("  timeouts: {request: 60s}", "  transfer: {transport: Rdma}"),
        ("p.yaml:51: spec.transfer.transport: is `Rdma`, which is not one of Auto, RDMA, TCP, "
        "SharedMemory, Stream"),
    ),
    (
        ("mode: Full", "mode: Ful"),
        ("p.yaml:27: spec.edges[0].mode: is `Ful`, which is not one of Full, Stream "
        "(did you mean `Full`?)"),
    ),
    (
        ("{from: thinker, to: talker, output: hidden, mode: Full}", "{from: thinker, to: talker}"),
        ("p.yaml:27: spec.edges[0].output: is required (add it: Name of the producer's output; "
        "the consumer receives it under the same name)"),
    ),
    (
        ("limits: {maxRunning: 8}", "limits: {maxRunning: 0}"),
        "p.yaml:19: spec.stages[thinker].defaults.limits.maxRunning: must be at least 1, not `0`",
    ),
    (
        ("limits: {maxRunning: 8}", "limits: {maxQueued: 2000000}"),
        ("p.yaml:19: spec.stages[thinker].defaults.limits.maxQueued: must be at most 1048576, "
        "not `2000000`"),
    ),
    (
        ("limits: {maxRunning: 8}", "limits: {maxRunning: many}"),
        ("p.yaml:19: spec.stages[thinker].defaults.limits.maxRunning: must be a whole number, "
        "not `many`"),
    ),
    (
        ("limits: {maxRunning: 8}", "limits: {maxRunning: 1.5}"),
        ("p.yaml:19: spec.stages[thinker].defaults.limits.maxRunning: must be a whole number, "
        "not `1.5`"),
    ),
    (
        ("limits: {maxRunning: 8}", "limits: {slabBytes: 64MB}"),
        ("p.yaml:19: spec.stages[thinker].defaults.limits.slabBytes: is `64MB`, which has the "
        "wrong form (write bytes with a unit, e.g. `64Mi` or `2Gi`)"),
    ),
    (
        ('{name: THREADS, value: "1"}', "{name: THREADS, value: 1}"),
        ("p.yaml:18: spec.stages[thinker].defaults.env[THREADS].value: must be text, not `1` "
        '(quote it: "1")'),
    ),
    (
        ('{name: THREADS, value: "1"}', '{name: 1THREADS, value: "1"}'),
        ("p.yaml:18: spec.stages[thinker].defaults.env[1THREADS].name: is `1THREADS`, which has "
        "the wrong form (use letters, digits and `_`; do not start with a digit)"),
    ),
    (
        ("servedNames: [chat]", "servedNames: chat"),
        "p.yaml:46: spec.model.servedNames: must be a list, not `chat`",
    ),
    (
        ('source: "hf://org/big@main"', "source: big"),
        ("p.yaml:46: spec.model.source: is `big`, which has the wrong form (write a source with "
        "its scheme, e.g. `hf://org/name@revision`, `package://name` or `file:///path`)"),
    ),
    (
        ("metadata: {name: small-node}", "metadata: {name: small-node, namespace: x}"),
        ("p.yaml:34: metadata.namespace: unknown field (this kind belongs to the whole cluster; remove "
        "it)"),
    ),
    (
        ("kind: StageRuntime", "kind: StageRuntimes"),
        ("p.yaml:33: kind: is `StageRuntimes`, which this release does not know "
        "(did you mean `StageRuntime`?)"),
    ),
    (
        ("kind: StageRuntime\n", ""),
        ("p.yaml:32: kind: is required (add one of InferencePipeline, PipelineTemplate, Stage, "
        "StageRuntime)"),
    ),
    (
        ("apiVersion: omnistage.io/v1alpha1\nkind: StageRuntime", "apiVersion: v1\nkind: StageRuntime"),
        "p.yaml:32: apiVersion: is `v1` (write `apiVersion: omnistage.io/v1alpha1`)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "problem"), INVALID, ids=[row[1][:60] for row in INVALID])
def test_a_field_that_is_wrong_is_named_with_its_remedy(
    change: tuple[str, str], problem: str
) -> None:
    assert problem in lines_of(bent(change))


def test_a_broken_document_does_not_make_its_name_unknown_to_others() -> None:
    lines = lines_of(bent(("execution: Generation", "execution: Generator")))

    assert lines == [
        (
            "p.yaml:21: spec.stages[talker].execution: is `Generator`, which is not one of "
            "Autoregressive, Generation, Diffusion (did you mean `Generation`?)"
        )
    ]


def test_every_problem_of_a_file_is_found_at_once() -> None:
    lines = lines_of(
        bent(
            ("mode: Full", "mode: Ful"),
            ("steps: 6", "steps: 6, steps: 7"),
            ("request: 60s", "request: soon"),
        )
    )

    assert [line.split(":")[1] for line in lines] == ["27", "37", "51"]


def test_what_a_cluster_adds_to_a_resource_is_no_problem() -> None:
    exported = VALID.replace(
        "metadata: {name: chat}",
        "metadata: {name: chat, uid: 1f, generation: 3, creationTimestamp: 2026-01-01T00:00:00Z}",
    )

    assert lines_of(f"{exported}status: {{conditions: []}}\n") == []


def test_a_document_that_is_no_mapping_is_named() -> None:
    assert lines_of("- a\n- b\n") == [
        "p.yaml:1: is not a mapping (write one resource per document)"
    ]


def test_a_file_without_resources_says_so() -> None:
    assert lines_of("# nothing\n") == ["p.yaml:1: holds no resources (add some)"]


def test_snake_case_is_for_python_only() -> None:
    lines = lines_of(bent(("      engineArgs: {width: 3}", "      engine_args: {width: 3}")))

    assert lines == [
        "p.yaml:50: spec.stages[thinker].engine_args: unknown field (did you mean `engineArgs`?)"
    ]


def test_several_files_are_one_set_of_resources(tmp_path: Path) -> None:
    parts = VALID.split("---\n")
    paths = [tmp_path / f"{number}.yaml" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_text(part, encoding="utf-8")

    resources = load_files(paths)

    assert resources.problems == ()
    assert [len(resources.templates), len(resources.runtimes), len(resources.pipelines)] == [
        1,
        1,
        1,
    ]
    assert resources.pipelines[0].source.file == str(paths[2])


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.encode())

    assert load_file(path).problems == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe", "is not UTF-8 text: byte 0"),
        (b"#" * (MAX_FILE_BYTES + 1), f"is over {MAX_FILE_BYTES} bytes; split it"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "p.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UnreadableFile) as caught:
        load_file(path)

    assert caught.value.message == f"{path}: {words}"
    assert status_of(caught.value) == status_of(InvalidPipeline(""))


def test_resources_made_in_python_are_called_by_kind_and_name() -> None:
    runtime = StageRuntime(
        metadata=ClusterMetadata(name="r"), spec=StageRuntimeSpec.model_validate({"engine": "vllm"})
    )

    (document,) = Resources.of(runtime).runtimes

    assert document.source.file == "StageRuntime/r"
    assert str(document.place.at("spec", "engine").problem("x")) == "StageRuntime/r: spec.engine: x"


def test_loading_the_same_text_twice_gives_equal_resources() -> None:
    assert load_text(VALID, file="p") == load_text(VALID, file="p")
