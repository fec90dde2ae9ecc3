"""The engine `torch`: one part of a model, found by the checkpoint's family and `component`.

What all parts have in common is here: weights, placement, the refusal of what does not fit. What a
part computes is its component's own business.
"""

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import DeviceMemory
from omnistage_common.tensors import PageLock
from omnistage_stage.engines.arguments import sole_output
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.torch.arguments import parse_component_arguments
from omnistage_stage.engines.torch.checkpoints import open_checkpoint
from omnistage_stage.engines.torch.components import (
    PRODUCES,
    TAKES_DEVICE_TENSORS,
    Component,
    ComponentSpec,
    find_component,
)
from omnistage_stage.engines.torch.placement import Placement, place
from omnistage_stage.engines.workers import Work, WorkerThreads
from omnistage_stage.weights import logged, weights_of

__all__ = ["TorchEngine"]


class TorchEngine:
    """One part of a model; see the package for its parts."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._arguments = parse_component_arguments(spec.args)
        self._output = sole_output(spec, PRODUCES[self._arguments.component])
        self._component: Component | None = None
        self._placement: Placement | None = None

    @property
    def active(self) -> int:
        """Requests that hold memory of the model."""
        return 0 if self._component is None else self._component.active

    async def load(self) -> None:
        """Loads the part in its thread; the event loop stays free.

        Raises:
            SetupError: Weights, packages or arguments are not right; says which and what to do.
        """
        making = WorkerThreads(name="loading", size=1)
        try:
            component = await making.compute(self._make)
        finally:
            making.close()
        self._component = component
        await component.load()

    async def probe(self) -> None:
        """Computes something small for real."""
        await self._loaded().probe()

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Computes one request.

        Raises:
            InvalidRequest: The client can mend it; names the field.
            EngineFailed: Anything else that went wrong.
        """
        return await self._loaded().run(request, outputs)

    @property
    def takes_device_tensors(self) -> bool:
        """Whether the part reads inputs on its device; see `DeviceOwner`."""
        return self._arguments.component in TAKES_DEVICE_TENSORS

    def device_memory(self, size: int) -> DeviceMemory:
        """Memory of the part's device for tensors; see `DeviceOwner`.

        Raises:
            SetupError: The device has not as much.
        """
        from omnistage_stage.engines.torch.device_memory import DeviceRegion  # noqa: PLC0415

        return DeviceRegion(self._placed().device, size)

    def page_lock(self) -> PageLock | None:
        """What locks pages for the part's device; see `DeviceOwner`."""
        from omnistage_stage.engines.torch.device_memory import page_lock_of  # noqa: PLC0415

        return page_lock_of(self._placed().device)

    async def close(self) -> None:
        """Ends the thread and frees the weights."""
        if self._component is not None:
            await self._component.close()

    def _placed(self) -> Placement:
        if self._placement is None:
            raise EngineFailed("the torch engine was used before it was loaded")
        return self._placement

    def _loaded(self) -> Component:
        if self._component is None:
            raise EngineFailed("the torch engine was used before it was loaded")
        return self._component

    def _make(self, _work: Work) -> Component:
        placement = self._placement = place(self._arguments)
        folder = weights_of(self._spec.model).prepare(logged)
        checkpoint = open_checkpoint(folder)
        factory = find_component(checkpoint.model_type, self._arguments.component)
        return factory(
            ComponentSpec(
                spec=self._spec,
                arguments=self._arguments,
                output=self._output,
                checkpoint=checkpoint,
                placement=placement,
            )
        )
