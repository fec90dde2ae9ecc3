"""Requests over real stage processes that keep every tensor as it came: what HTTP would round.

It is the gateway without its HTTP door: the same routes, links and sequence, in the test's own
process, and an answer that keeps text and tensors.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import numpy as np
import numpy.typing as npt

from fakes.deployment import Deployment, within
from omnistage_common.deadlines import Deadline
from omnistage_common.ids import OutputName, StageName, new_incarnation, new_request_id, this_host
from omnistage_common.links.frames import FinishReason
from omnistage_common.links.replica_link import ReplicaLink
from omnistage_common.payloads import (
    Content,
    ElementType,
    Output,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_common.pipeline.plan import Modality, OutputPlan, PipelinePlan
from omnistage_common.tensors import TensorPlane
from omnistage_common.transfers import transports_for
from omnistage_gateway.pipelines.routing import Routes
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint
from omnistage_gateway.replicas.pool import StagePool
from omnistage_gateway.requests.sequencing import Sequence, StagedRequest

__all__ = ["ExactAnswer", "ExactRequests", "exact_requests", "tensor_payload"]

READY_SECONDS = 30.0


class ExactAnswer:
    """What came of one request, unrounded."""

    def __init__(self) -> None:
        self.text = ""
        self.pieces: dict[Modality, list[npt.NDArray[np.generic]]] = {}
        """Modality -> tensors in the order they came."""
        self.rates: set[int] = set()
        self.steps: list[tuple[StageName, int, int]] = []
        self.finish_reason = FinishReason.NONE

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:  # noqa: ARG002
        """Keeps a piece."""
        if isinstance(content, str):
            self.text += content
        elif isinstance(content, Tensor) and plan.modality is not None:
            header = content.header
            array = np.frombuffer(content.data, header.element_type.value).reshape(header.shape)
            self.pieces.setdefault(plan.modality, []).append(array.copy())
            self.rates.add(header.rate_hz)

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """Keeps how far a stage is."""
        self.steps.append((stage, done, total))

    async def flush(self) -> None:
        """Nothing leaves."""

    @property
    def audio(self) -> npt.NDArray[np.generic]:
        """All samples."""
        return np.concatenate(self.pieces[Modality.AUDIO])


class ExactRequests:
    """Asks the stages of a deployment."""

    def __init__(self, deployment: Deployment, plan: PipelinePlan, plane: TensorPlane) -> None:
        self._routes = Routes(plan)
        self._plane = plane
        self.links = [
            ReplicaLink(ReplicaEndpoint(stage=replica.stage, replica=name, address=replica.address))
            for name, replica in deployment.replicas.items()
        ]
        self._pools = {
            stage.name: StagePool(
                stage.name,
                [link for link in self.links if link.endpoint.stage == stage.name],
                max_running=stage.limits.max_running,
            )
            for stage in plan.stages
        }

    @property
    def ready(self) -> bool:
        """Whether every stage can be asked."""
        return all(pool.ready for pool in self._pools.values())

    async def ask(
        self,
        inputs: Mapping[str, tuple[Payload, ...]],
        wants: frozenset[Modality],
        parameters: Parameters | None = None,
        *,
        first_frames: int | None = None,
        stream: bool = True,
    ) -> ExactAnswer:
        """What comes of one request."""
        owner = object()
        deadline = Deadline.after(90)
        brought = {
            OutputName(name): tuple(
                [
                    Output(
                        name=OutputName(name),
                        index=index,
                        payload=await self._published(payload, owner, deadline),
                    )
                    for index, payload in enumerate(payloads)
                ]
            )
            for name, payloads in inputs.items()
        }
        sequence = Sequence(
            StagedRequest(
                id=new_request_id(),
                inputs=brought,
                parameters=parameters or Parameters(),
                deadline=deadline,
                stream=stream,
                first_frames=first_frames,
            ),
            self._routes.find(frozenset(brought), wants),
            pools=self._pools,
            plane=self._plane,
        )
        answer = ExactAnswer()
        try:
            await sequence.run(answer)
        finally:
            self._plane.release_owner(owner)
        answer.finish_reason = sequence.progress.finish_reason
        return answer

    async def _published(self, payload: Payload, owner: object, deadline: Deadline) -> Payload:
        if not isinstance(payload.content, Tensor):
            return payload
        content = await self._plane.publish(payload.content, owner=owner, deadline=deadline)
        return Payload(kind=payload.kind, content=content)


def tensor_payload(array: npt.NDArray[np.generic], kind: PayloadKind, rate_hz: int = 0) -> Payload:
    """An array as a payload."""
    header = TensorHeader(
        element_type=ElementType(array.dtype.name), shape=array.shape, rate_hz=rate_hz
    )
    return Payload(kind=kind, content=Tensor(header=header, data=array.tobytes()))


@asynccontextmanager
async def exact_requests(
    deployment: Deployment, plan: PipelinePlan | None = None
) -> AsyncIterator[ExactRequests]:
    """Requests over a deployment, once every stage can be asked.

    Args:
        deployment: Its stages run.
        plan: How requests go over them, where that is not the plan they were started with: edges
            may be `Full` that were to stream.
    """
    plan = plan or deployment.plan
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=64 << 20,
        transports=transports_for(plan.transport),
    )
    requests = ExactRequests(deployment, plan, plane)
    tasks = [asyncio.create_task(link.run()) for link in requests.links]
    try:
        assert await asyncio.to_thread(within, READY_SECONDS, lambda: requests.ready)
        yield requests
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        plane.close()
