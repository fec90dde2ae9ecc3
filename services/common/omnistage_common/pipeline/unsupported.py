"""What the API knows and this release, or its local runtime, does not do: said, never ignored.

Each function is one gap. It goes when its feature comes, and nothing else needs to change.
"""

from collections.abc import Iterator

from omnistage_common.pipeline.merging import final_variables
from omnistage_common.pipeline.problems import Place, Problem, Severity
from omnistage_common.pipeline.resources import EnvVar
from omnistage_common.pipeline.selecting import Selection, StageSelection

__all__ = ["unsupported_problems"]


def unsupported_problems(selection: Selection, *, in_cluster: bool) -> tuple[Problem, ...]:
    """Everything in a pipeline that would not be done as it is written, in a cluster or locally."""
    gaps = () if in_cluster else (_nodes, _secrets, _no_replicas, _autoscaling)
    return tuple(problem for gap in gaps for problem in gap(selection))


def _nodes(selection: Selection) -> Iterator[Problem]:
    for stage in selection.stages:
        for written in stage.written:
            parallelism = written.settings.parallelism
            if parallelism is not None and parallelism.nodes > 1:
                yield written.place.at("parallelism", "nodes").problem(
                    f"is {parallelism.nodes}; one machine is one node", "remove it"
                )


def _secrets(selection: Selection) -> Iterator[Problem]:
    for stage in selection.stages:
        secret = {
            variable.name
            for _, variable in final_variables(selection, stage)
            if variable.secret_key is not None
        }
        for variables, place in _environments(stage):
            for index, variable in enumerate(variables):
                if variable.name in secret and variable.secret_key is not None:
                    yield place.at(index, "secretKey").problem(
                        "names a Secret, which only a cluster has; the variable stays unset",
                        f"add `--set stages.{stage.template.name}.env.{variable.name}=...`",
                        severity=Severity.WARNING,
                    )


def _environments(stage: StageSelection) -> Iterator[tuple[tuple[EnvVar, ...], Place]]:
    if stage.shared is None:
        yield stage.template.defaults.env, stage.place.at("defaults", "env")
    if stage.runtime is not None:
        yield stage.runtime.resource.spec.env, stage.runtime.place.at("spec", "env")
    for written in stage.written:
        yield written.settings.env, written.place.at("env")


def _no_replicas(selection: Selection) -> Iterator[Problem]:
    for stage in selection.stages:
        said = [each for each in stage.written if each.settings.replicas is not None]
        if said and said[-1].settings.replicas == 0:
            yield (
                said[-1]
                .place.at("replicas")
                .problem("is 0; without a replica the pipeline cannot serve", "write at least 1")
            )


def _autoscaling(selection: Selection) -> Iterator[Problem]:
    for stage in selection.stages:
        for written in stage.written:
            scaling = written.settings.autoscaling
            if scaling is not None:
                count = scaling.min_replicas
                yield written.place.at("autoscaling").problem(
                    f"needs a cluster; {count} replica{'s' if count > 1 else ''} will run",
                    "write `replicas` for another number",
                    severity=Severity.WARNING,
                )
