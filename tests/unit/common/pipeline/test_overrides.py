"""`--set` gives typed values and the same messages as YAML."""

import pytest

from omnistage_common.pipeline.overrides import Override, parse_override
from omnistage_common.pipeline.problems import ResourceProblems
from unit.common.pipeline.examples import VALID, lines_of, plan_of


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("stages.thinker.replicas=2", "stages.thinker.replicas", 2),
        ("stages.thinker.engineArgs.x=8", "stages.thinker.engineArgs.x", 8),
        ("stages.thinker.engineArgs.x=1e-3", "stages.thinker.engineArgs.x", 0.001),
        ("stages.thinker.engineArgs.x=[1, 2]", "stages.thinker.engineArgs.x", [1, 2]),
        ("stages.thinker.engineArgs.x={a: b}", "stages.thinker.engineArgs.x", {"a": "b"}),
        ("stages.thinker.engineArgs.x=", "stages.thinker.engineArgs.x", None),
        ("stages.thinker.env.N=2", "stages.thinker.env.N", "2"),
        ("stages.thinker.env.N=a=b", "stages.thinker.env.N", "a=b"),
        ("stages.thinker.model=file:///a: b", "stages.thinker.model", "file:///a: b"),
        ("stages.thinker.limits.slabBytes=1Mi", "stages.thinker.limits.slabBytes", "1Mi"),
        ("timeouts.request=30", "timeouts.request", "30"),
        ("streaming.chunked=false", "streaming.chunked", False),
        ("model.servedNames=[a, b]", "model.servedNames", ["a", "b"]),
    ],
)
def test_a_value_is_yaml_except_where_the_field_is_text(
    text: str, path: str, value: object
) -> None:
    assert parse_override(text) == Override(path=tuple(path.split(".")), value=value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("replicas", "--set replicas: is not `path=value` (e.g. `stages.thinker.replicas=2`)"),
        ("a..b=1", "--set a..b=1: is not `path=value` (e.g. `stages.thinker.replicas=2`)"),
        (
            "stages.t.replicas=[1",
            (
                "--set stages.t.replicas: is not YAML: expected ',' or ']', but got '<stream end>' "
                "(quote it)"
            ),
        ),
    ],
)
def test_text_that_is_no_override_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ResourceProblems) as caught:
        parse_override(text)

    assert [str(each) for each in caught.value.problems] == [problem]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stages.thinker.replica=2", "--set stages.thinker.replica: unknown field (did you mean `replicas`?)"),
        ("stages.thinker.replicas=two", "--set stages.thinker.replicas: must be a whole number, not `two`"),
        ("stages.thnker.replicas=2", "--set stages.thnker: the topology has no stage `thnker` (did you mean `thinker`?)"),
        ("stages.thnker.engineArgs.a.b=2", "--set stages.thnker: the topology has no stage `thnker` (did you mean `thinker`?)"),
        ("stages.thinker=2", "--set stages.thinker: cannot be set (set a field of a stage by its name)"),
        ("topology.stages=[]", "--set topology.stages: cannot be set (set a field of a stage by its name)"),
        ("timeouts.request=soon", "--set timeouts.request: is `soon`, which has the wrong form (write whole numbers with units, e.g. `120s`, `1m30s` or `500ms`)"),
        ("timeout.request=1s", "--set timeout: unknown field (did you mean `timeouts`?)"),
        ("stages.thinker.runtime.name=nope", "--set stages.thinker.runtime.name: there is no StageRuntime `nope` (StageRuntimes: small-node)"),
        ("stages.thinker.env.9=x", "--set stages.thinker.env.9.name: is `9`, which has the wrong form (use letters, digits and `_`; do not start with a digit)"),
    ],
)  # fmt: skip
def test_an_override_that_fits_nothing_is_named(text: str, problem: str) -> None:
    assert problem in lines_of(VALID, text)


def test_a_value_and_something_inside_it_cannot_both_be_set() -> None:
    (line,) = lines_of(VALID, "timeouts=1", "timeouts.request=1s")[:1]

    assert line == "--set timeouts.request: `timeouts` is set to a value as well"


def test_the_last_of_two_overrides_wins() -> None:
    plan = plan_of(VALID, "stages.thinker.replicas=2", "stages.thinker.replicas=3")

    assert plan.stages[0].replicas == 3


def test_an_argument_is_changed_at_depth_without_losing_its_neighbours() -> None:
    plan = plan_of(VALID, "stages.thinker.engineArgs.outputs.text.count=2")

    assert plan.stages[0].engine_args["outputs"] == {"text": {"text": "hi", "count": 2}}


def test_changing_an_argument_at_depth_leaves_the_resources_as_they_were() -> None:
    plan_of(VALID, "stages.thinker.engineArgs.outputs.text.text=changed")

    assert plan_of(VALID).stages[0].engine_args["outputs"] == {"text": {"text": "hi"}}


def test_a_scalar_in_the_way_of_a_deep_argument_is_replaced() -> None:
    plan = plan_of(VALID, "stages.thinker.engineArgs.steps.inner=2")

    assert plan.stages[0].engine_args["steps"] == {"inner": 2}
