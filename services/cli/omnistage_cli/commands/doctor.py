"""`omnistage doctor`: why a pipeline of a cluster is not ready, and what to do about it.

It prints what the pipeline's own status says, so that it knows nothing better than `kubectl` does, and
puts the remedy to each reason. Of a stage that loads its model it tells what that has said last. It
changes nothing.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from prometheus_client import CollectorRegistry
from rich.console import Console

from omnistage_cli.commands.diagnosis import diagnosis_lines, is_ready
from omnistage_cli.commands.loading import last_words
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.connecting import Address, connect
from omnistage_common.cluster.errors import ObjectNotFound
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import INFERENCE_PIPELINES
from omnistage_common.cluster.manifests import ObjectKey
from omnistage_common.cluster.metrics import ClusterMetrics
from omnistage_common.errors import SetupError
from omnistage_common.ids import StageName
from omnistage_common.pipeline.resources.status import InferencePipelineStatus

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES: Final = """
Examples:

  omnistage doctor qwen3-omni

  omnistage doctor qwen3-omni --namespace models --context staging
"""


def doctor(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="Name of an InferencePipeline in a cluster.")
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the pipeline.")
    ] = "default",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig file; left out for what kubectl uses.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
) -> None:
    """Say why a pipeline is not ready, stage by stage, and what to do about it.

    The exit code is 0 when it is ready, 1 when it is not.
    """
    address = Address(kubeconfig=kubeconfig, context=context)
    found, status, words = asyncio.run(_read(address, ObjectKey(namespace, pipeline)))
    console = Console()
    for line in diagnosis_lines(found, status, words):
        console.print(line, soft_wrap=True)
    if not is_ready(found, status):
        raise typer.Exit(1)


async def _read(
    address: Address, key: ObjectKey
) -> tuple[dict[str, Any], InferencePipelineStatus, dict[StageName, str]]:
    async with connect(address) as connection:
        api = Api(
            connection,
            field_manager="omnistage-doctor",
            fence=Fence.always_open(),
            metrics=ClusterMetrics(CollectorRegistry()).api(),
        )
        try:
            found = await api.get(INFERENCE_PIPELINES, key)
        except ObjectNotFound as missing:
            raise SetupError(
                f"there is no InferencePipeline {key}, or its definition is not installed; "
                "`kubectl get inferencepipelines -A` lists what there is",
                field="PIPELINE",
            ) from missing
        status = InferencePipelineStatus.model_validate(found.get("status", {}))
        return found, status, await last_words(api, key.namespace, status.stages)
