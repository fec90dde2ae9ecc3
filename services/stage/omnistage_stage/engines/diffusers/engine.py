"""The engine `diffusers`: a pipeline of any class as one stage, or one component of a split one.

The event loop checks requests and hands over what is made; one thread computes, another loads and
copies. Tensors that arrive are copied, since they may be gone when a cancelled request has returned
while its batch still runs.
"""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import DiffusionParameters
from omnistage_stage.engines.arguments import parse_arguments
from omnistage_stage.engines.diffusers.arguments import DiffusersArguments
from omnistage_stage.engines.diffusers.assembling import Assembled, assemble, check_outputs
from omnistage_stage.engines.diffusers.batching import Batcher
from omnistage_stage.engines.diffusers.calling import prompt_of
from omnistage_stage.engines.diffusers.jobs import Asked, Job, Made
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.workers import WorkerThreads

__all__ = ["DiffusersEngine"]

_SEED_BITS: Final = 32

_log = structlog.get_logger(__name__)


class DiffusersEngine:
    """Runs a diffusion model, or a part of one; see the package for its parts."""

    def __init__(self, spec: EngineSpec) -> None:
        self._arguments = parse_arguments(spec.args, DiffusersArguments)
        check_outputs(spec, self._arguments.component)
        self._spec = spec
        self._aside = WorkerThreads(name=f"diffusers-io-{spec.stage}", size=1)
        self._assembled: Assembled | None = None
        self._batcher: Batcher[Job, Made] | None = None

    @property
    def active(self) -> int:
        """Images, videos and sounds in work or waiting."""
        return 0 if self._batcher is None else self._batcher.active

    async def load(self) -> None:
        """Loads the model; the event loop stays free.

        Raises:
            SetupError: Weights, packages, arguments or template are not right; says which and what
                to do.
        """
        assembled = await self._aside.compute(lambda _work: assemble(self._spec, self._arguments))
        self._assembled = assembled
        self._batcher = Batcher(
            assembled.part.compute,
            name=f"diffusers-{self._spec.stage}",
            prepare=partial(assembled.set_threads, self._arguments.omp_threads),
            max_size=assembled.max_batch,
            # Where requests come one by one, there is no company to wait for.
            max_wait=self._arguments.max_wait if self._spec.max_running > 1 else 0,
        )
        self._batcher.start()

    async def probe(self) -> None:
        """Computes something small for real."""
        assembled, batcher = self._loaded()
        jobs = assembled.part.trial()
        with batcher.submitted(jobs, [_ignore for _ in jobs]) as results:
            for result in results:
                if not await result:
                    raise EngineFailed("the model made nothing when it was tried")

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Computes one request.

        Raises:
            InvalidRequest: The model cannot make what is asked for; names the field.
            EngineFailed: diffusers failed.
        """
        assembled, batcher = self._loaded()
        jobs = assembled.part.jobs(await self._asked(request, assembled))
        progress = _Progress(outputs, len(jobs))
        with batcher.submitted(jobs, [progress.of(index) for index in range(len(jobs))]) as results:
            for index, result in enumerate(results):
                for name, payload in await result:
                    await outputs.put(name, payload, index=index)
        return EngineResult()

    async def close(self) -> None:
        """Stops what still runs, frees the model and ends the threads."""
        if self._batcher is not None:
            await self._batcher.close()
        self._aside.close()
        self._assembled = self._batcher = None

    def _loaded(self) -> tuple[Assembled, Batcher[Job, Made]]:
        if self._assembled is None or self._batcher is None:
            raise EngineFailed("the engine is not loaded")
        return self._assembled, self._batcher

    async def _asked(self, request: EngineRequest, assembled: Assembled) -> Asked:
        """Checks a request and copies its tensors."""
        part, call = assembled.part, assembled.call
        diffusion = request.parameters.diffusion or DiffusionParameters()
        call.check(diffusion, self._arguments.limits, part.grid)
        arrived = {name: request.tensors(name) for name in part.ports}
        tensors = (
            await self._aside.compute(lambda _work: assembled.copied(arrived)) if arrived else {}
        )
        return Asked(
            arguments=call.arguments(diffusion),
            prompt=prompt_of(request.inputs) if part.takes_prompt else "",
            negative_prompt=call.negative_prompt(diffusion),
            seed=_seed_of(request, told=part.draws_noise),
            count=diffusion.count,
            tensors=tensors,
        )


def _seed_of(request: EngineRequest, *, told: bool) -> int:
    if request.parameters.seed is not None:
        return request.parameters.seed
    seed = secrets.randbits(_SEED_BITS)
    if told:
        _log.info("chose a seed", request_id=request.id, seed=seed)
    return seed


class _Progress:
    """Adds up the steps of all that one request makes."""

    def __init__(self, outputs: Outputs, jobs: int) -> None:
        self._outputs = outputs
        self._done = [0] * jobs

    def of(self, index: int) -> Callable[[int, int], None]:
        """What job `index` tells its progress to."""
        return partial(self._told, index)

    def _told(self, index: int, done: int, total: int) -> None:
        self._done[index] = done
        self._outputs.progress(sum(self._done), total * len(self._done))


def _ignore(_done: int, _total: int) -> None:
    """Nobody asks how far a trial is."""
