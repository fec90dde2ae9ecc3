"""An engine that computes nothing, at a fixed or zero cost per step; for tests and load.

It behaves like a batching engine: one step loop serves every request it has, each step gives each of
them one token, and a request that is cancelled leaves at the next step. Steps without cost take no
time: they are all done before the event loop has its next turn, as they would be in the thread of a
real engine that costs nothing. It is never presented as a model. What it emits is set by
`engineArgs`: text or tensors of any shape, at every step or at the end.

It can stand in for a stage that streams, too: one that paces its steps by what arrives (`follows`,
as a talker speaks no faster than the text is written), and one that converts what arrives
(`converts`, as a vocoder turns frames into samples). Where its replica spans nodes, its processes
meet, and the loss of one fails what runs.
"""

import asyncio
import math
from enum import Enum
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from omnistage_common.errors import EngineFailed, OmnistageError, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.links.frames import FinishReason
from omnistage_common.payloads import (
    INLINE_LIMIT,
    Conversation,
    ElementType,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
    TextPart,
)
from omnistage_stage.engines.arguments import parse_arguments
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.rendezvous import Meeting, attend, resolved

__all__ = ["SimulatedArgs", "SimulatedEngine"]


class When(Enum):
    """When an output is emitted."""

    STEP = "step"
    END = "end"


class SimulatedOutput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine emits under one name: text, or a tensor of zeros."""

    when: When = When.END
    text: str | None = None
    """The piece of text; None for a tensor."""
    element_type: ElementType = ElementType.UINT8
    shape: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    rate_hz: Annotated[int, Meta(ge=0)] = 0


class Conversion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stage that turns rows of one thing into rows of another, as they come."""

    input: str
    """Port whose rows (first dimension of the tensors) are converted."""
    rows_per_step: Annotated[int, Meta(ge=1)] = 1
    """Rows that one step converts; a smaller chunk costs a step all the same."""
    rows_out: Annotated[int, Meta(ge=1)] = 1
    """Rows that are made of each: every output's first dimension, whatever its `shape` says."""


class SimulatedArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engineArgs` of a simulated stage."""

    steps: Annotated[int, Meta(ge=1)] = 1
    """Steps per request, unless the request's `max_tokens` says otherwise."""
    step_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Cost of one step, whatever the number of requests in it."""
    load_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Cost of loading."""
    fail_after_steps: Annotated[int, Meta(ge=0)] | None = None
    """Raise at this step of every request; to see what a broken model does."""
    outputs: dict[str, SimulatedOutput] = {}
    """Output name -> what is emitted under it; every output of the template, and no other."""
    reports_progress: bool = False
    """Say after each step how many are done."""
    follows: str | None = None
    """Port that paces the steps: a step waits for a row (or piece of text) of its own there, as
    long as more may come."""
    converts: Conversion | None = None
    """Steps and outputs follow from what arrives; `steps` and `when` have no meaning then."""


class _Job:
    """One request in the step loop."""

    __slots__ = ("allowed", "done", "outputs", "step", "steps")

    def __init__(self, *, steps: int, outputs: Outputs | None, allowed: float = math.inf) -> None:
        self.step = 0
        self.steps = steps
        self.outputs = outputs
        """None for steps that emit nothing."""
        self.allowed = allowed
        """Steps that may be done by now."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ready(self) -> bool:
        """Whether the next step may be done."""
        return self.step < self.allowed


class SimulatedEngine:
    """See the module."""

    takes_parallelism: Final = True

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._meeting = Meeting(spec.parallelism.nodes)
        self._args: Final = parse_arguments(spec.args, SimulatedArgs)
        unknown = set(self._args.outputs) ^ set(spec.produces)
        if unknown:
            raise SetupError(
                f"engineArgs.outputs of stage {spec.stage} and what the template says it produces"
                f" differ in: {', '.join(sorted(unknown))}",
                field="engineArgs.outputs",
            )
        self._payloads = {
            name: _payload(self._args.outputs[name], kind) for name, kind in spec.produces.items()
        }
        self._at_step = self._emitted(When.STEP)
        self._at_end = self._emitted(When.END)
        self._jobs: dict[_Job, None] = {}
        self._work = asyncio.Event()
        self._steps: asyncio.Task[None] | None = None

    def _emitted(self, when: When) -> tuple[tuple[OutputName, Payload], ...]:
        return tuple(
            (name, payload)
            for name, payload in self._payloads.items()
            if self._args.outputs[name].when is when
        )

    async def load(self) -> None:
        """Waits for the gang and for `load_seconds`, and starts the step loop.

        Raises:
            SetupError: A member of the gang does not come.
        """
        if self._spec.gang is not None:
            await self._meeting.open(await resolved(self._spec.gang.leader))
        await asyncio.sleep(self._args.load_seconds)
        self._steps = asyncio.create_task(self._step_loop(), name="simulated step loop")

    async def probe(self) -> None:
        """The loop must be running, and the gang be whole."""
        self._meeting.check()
        if self._steps is None or self._steps.done():
            raise EngineFailed("the step loop of the simulated engine is not running")

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Emits what `engineArgs` say, step by step.

        Raises:
            EngineFailed: As told to, or a member of the gang is lost.
        """
        if self._spec.gang is None:
            return await self._run(request, outputs)
        return await self._meeting.needing_all(self._run(request, outputs))

    async def _run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        if self._args.converts is not None:
            return await self._convert(request, outputs, self._args.converts)
        wanted = request.parameters.max_tokens
        steps = self._args.steps if wanted is None else wanted
        if steps and self._args.follows is None:
            await self._stepped(_Job(steps=steps, outputs=outputs))
        elif steps:
            await self._follow(request, _Job(steps=steps, outputs=outputs, allowed=0))
        for name, payload in self._at_end:
            await outputs.put(name, payload)
        return EngineResult(
            finish_reason=FinishReason.LENGTH if self._at_step else FinishReason.NONE,
            input_tokens=_words(request),
            output_tokens=steps,
        )

    async def _stepped(self, job: _Job) -> None:
        self._jobs[job] = None
        self._work.set()
        try:
            await job.done
        finally:
            self._jobs.pop(job, None)

    async def _follow(self, request: EngineRequest, job: _Job) -> None:
        """Steps no faster than rows arrive, until no more come; what is left over is not read."""
        try:
            async with asyncio.TaskGroup() as group:
                pacing = group.create_task(self._pace(request, job))
                await self._stepped(job)
                pacing.cancel()
        except* OmnistageError as failed:
            raise failed.exceptions[0] from None

    async def _pace(self, request: EngineRequest, job: _Job) -> None:
        async for payload in request.pieces(OutputName(self._args.follows or "")):
            job.allowed += _rows(payload)
            self._work.set()
        job.allowed = math.inf
        self._work.set()

    async def _convert(
        self, request: EngineRequest, outputs: Outputs, conversion: Conversion
    ) -> EngineResult:
        """Converts what is there at once, and then chunk by chunk."""
        name = OutputName(conversion.input)
        total = 0
        rows = sum(_rows(payload) for payload in request.inputs.get(name, ()))
        if rows:
            total += await self._converted(rows, outputs, conversion)
        if name in request.streams:
            async for payload in request.streams[name]:
                total += await self._converted(_rows(payload), outputs, conversion)
        return EngineResult(output_tokens=total)

    async def _converted(self, rows: int, outputs: Outputs, conversion: Conversion) -> int:
        steps = -(-rows // conversion.rows_per_step)
        await self._stepped(_Job(steps=steps, outputs=None))
        for name, payload in self._payloads.items():
            await outputs.put(name, _with_rows(payload, rows * conversion.rows_out))
        return rows * conversion.rows_out

    async def close(self) -> None:
        """Ends the step loop, and lets the gang go."""
        await self._meeting.close()
        if self._steps is not None:
            self._steps.cancel()
            await asyncio.wait((self._steps,))

    async def follow(self) -> None:
        """Stays as long as the leader does.

        Raises:
            SetupError: The leader does not come.
        """
        if self._spec.gang is not None:
            await attend(self._spec.gang)

    async def _step_loop(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while jobs := [job for job in self._jobs if job.ready]:
                if self._args.step_seconds:
                    await asyncio.sleep(self._args.step_seconds)
                for job in jobs:
                    self._step(job)

    def _step(self, job: _Job) -> None:
        if job.done.done():
            self._jobs.pop(job, None)
            return
        if job.step == self._args.fail_after_steps:
            self._jobs.pop(job, None)
            job.done.set_exception(EngineFailed(f"simulated failure at step {job.step}"))
            return
        if job.outputs is not None:
            for name, payload in self._at_step:
                job.outputs.emit(name, payload)
        job.step += 1
        if job.outputs is not None and self._args.reports_progress:
            job.outputs.progress(job.step, job.steps)
        if job.step >= job.steps:
            self._jobs.pop(job, None)
            job.done.set_result(None)


def _payload(output: SimulatedOutput, kind: PayloadKind) -> Payload:
    if output.text is not None:
        return Payload(kind=kind, content=output.text)
    header = TensorHeader(
        element_type=output.element_type, shape=output.shape, rate_hz=output.rate_hz
    )
    if output.when is When.STEP and header.length > INLINE_LIMIT:
        raise SetupError(
            f"a tensor of {header.length} bytes at every step is over the {INLINE_LIMIT} that ride"
            " inline; emit it with when: end",
            field="engineArgs.outputs",
        )
    return Payload(kind=kind, content=Tensor(header=header, data=bytes(header.length)))


def _rows(payload: Payload) -> int:
    """Rows of a tensor; anything else counts as one."""
    content = payload.content
    if isinstance(content, Tensor) and content.header.shape:
        return content.header.shape[0]
    return 1


def _with_rows(payload: Payload, rows: int) -> Payload:
    """A tensor of as many rows, or the text."""
    if not isinstance(payload.content, Tensor):
        return payload
    header = replace(payload.content.header, shape=(rows, *payload.content.header.shape[1:]))
    return Payload(kind=payload.kind, content=Tensor(header=header, data=bytes(header.length)))


def _words(request: EngineRequest) -> int:
    """Words of the conversation, standing for tokens."""
    return sum(
        len(part.text.split())
        for payloads in request.inputs.values()
        for payload in payloads
        if isinstance(payload.content, Conversation)
        for message in payload.content.messages
        for part in message.parts
        if isinstance(part, TextPart)
    )
