"""What each component computes, with a pipeline at hand (foreign: torch).

All of it runs in the batcher's thread. A component turns a request into jobs, and jobs into named
outputs; where several jobs come at once, they are alike, and become one call with a batch dimension.
Every image, video or sound has a generator of its own, on the CPU and seeded with its own number, so
what it is does not depend on its company or on the device that draws the noise.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from traceback import walk_tb
from typing import Any, Final

import numpy as np
import torch

from omnistage_common.errors import EngineFailed, InvalidRequest, SetupError, truncated
from omnistage_common.ids import OutputName
from omnistage_common.payloads import Payload, PayloadKind
from omnistage_stage.engines.diffusers.arguments import Component
from omnistage_stage.engines.diffusers.batching import Watch
from omnistage_stage.engines.diffusers.calling import Grid, PipelineCall
from omnistage_stage.engines.diffusers.families import Family, Need
from omnistage_stage.engines.diffusers.jobs import Asked, Job, Made
from omnistage_stage.engines.diffusers.steps import count_steps
from omnistage_stage.engines.diffusers.tensors import pixels, tensor_payload, torch_type

__all__ = ["Decoder", "Denoiser", "Part", "TextEncoder", "Whole", "part_of"]

_TRIAL_PROMPT: Final = "a lighthouse"
_TRIAL_STEPS: Final = 2
_UNKNOWN_GRID: Final = Grid(pixels=64, frames=8)
"""For trials of pipelines whose sizes are not known: what most of them can make."""
_RESULTS: Final = {
    PayloadKind.IMAGE: "images",
    PayloadKind.VIDEO: "frames",
    PayloadKind.WAVEFORM: "audios",
}
"""What a pipeline's result calls what it made."""


class Part(ABC):
    """A component of one loaded pipeline. Used by one thread."""

    takes_prompt = True
    """Whether a request must bring a prompt."""
    draws_noise = True
    """Whether what it makes begins with noise, so that the seed is worth knowing."""

    def __init__(self, pipeline: Any, call: PipelineCall, dtype: Any) -> None:
        self._pipeline = pipeline
        self._call = call
        self._dtype = dtype

    @property
    def ports(self) -> tuple[OutputName, ...]:
        """Where tensors may arrive."""
        return ()

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """What sizes can be asked of it."""

    @abstractmethod
    def jobs(self, asked: Asked) -> list[Job]:
        """What one request is made of; item i of its outputs is made by job i.

        Raises:
            EngineFailed: Another component sent less than this one needs.
        """

    @abstractmethod
    def trial(self) -> list[Job]:
        """Something small to compute, which shows that everything is in place."""

    @abstractmethod
    def compute(self, jobs: Sequence[Job], watch: Watch) -> list[Made]:
        """Computes jobs of equal keys.

        Raises:
            InvalidRequest: The pipeline refuses what was asked for.
            AbandonedError: Nobody wants the result any more.
        """

    def _small(self, grid: Grid) -> dict[str, Any]:
        """Arguments for a trial: few pixels, few frames, few steps, no guidance."""
        return self._call.trial(
            {
                "width": grid.pixels * 4,
                "height": grid.pixels * 4,
                "steps": _TRIAL_STEPS,
                "frames": grid.frames + 1,
                "guidance_scale": 1.0,
                "true_cfg_scale": 1.0,
            }
        )

    def _on_device(self, tensor: Any) -> Any:
        moved = tensor.to(self._pipeline.device)
        return moved.to(self._dtype) if moved.is_floating_point() else moved


class Whole(Part):
    """Prompt to pixels or samples: the pipeline's own call, of any class."""

    def __init__(
        self,
        pipeline: Any,
        call: PipelineCall,
        dtype: Any,
        *,
        family: Family | None,
        output: OutputName,
        kind: PayloadKind,
    ) -> None:
        super().__init__(pipeline, call, dtype)
        self._family = family
        self._output = output
        self._kind = kind
        self.takes_prompt = call.takes("prompt")

    @property
    def grid(self) -> Grid:
        """See `Part.grid`; where it is not known, the pipeline itself refuses."""
        return Grid() if self._family is None else self._family.grid(self._pipeline)

    def jobs(self, asked: Asked) -> list[Job]:
        """See `Part.jobs`."""
        return [
            Job(
                arguments=asked.arguments,
                prompt=asked.prompt,
                negative_prompt=asked.negative_prompt,
                seed=asked.seed + index,
            )
            for index in range(asked.count)
        ]

    def trial(self) -> list[Job]:
        """See `Part.trial`."""
        grid = _UNKNOWN_GRID if self._family is None else self.grid
        return [Job(arguments=self._small(grid), prompt=_TRIAL_PROMPT)]

    def compute(self, jobs: Sequence[Job], watch: Watch) -> list[Made]:
        """See `Part.compute`."""
        arguments = _arguments_of(jobs)
        if self._call.takes("prompt"):
            arguments["prompt"] = _row([job.prompt for job in jobs])
        if jobs[0].negative_prompt is not None and self._call.takes("negative_prompt"):
            arguments["negative_prompt"] = _row([job.negative_prompt for job in jobs])
        if self._call.takes("generator"):
            arguments["generator"] = _row([_generator(job) for job in jobs])
        if self._call.takes("output_type"):
            arguments["output_type"] = "np"
        count_steps(self._pipeline, watch.step)
        with _refusals():
            result = self._pipeline(**arguments, return_dict=True)
        made = getattr(result, _RESULTS[self._kind], None)
        if made is None:
            raise SetupError(
                f"{type(self._pipeline).__name__} makes no {_RESULTS[self._kind]}; the template "
                f"says that this stage produces {self._kind.value}",
                field="produces",
            )
        return [((self._output, self._payload(one)),) for one in made]

    def _payload(self, content: Any) -> Payload:
        rate = _rate(self._pipeline, self._family, self._call, self._kind)
        return _result_payload(self._kind, content, rate)


class TextEncoder(Part):
    """Prompt to embeddings, one prompt at a time: a batch would pad them to one length."""

    draws_noise = False

    def __init__(self, pipeline: Any, call: PipelineCall, dtype: Any, *, family: Family) -> None:
        super().__init__(pipeline, call, dtype)
        self._family = family

    @property
    def grid(self) -> Grid:
        """See `Part.grid`; what the denoiser would refuse is refused here already."""
        return self._family.grid(self._pipeline)

    def jobs(self, asked: Asked) -> list[Job]:
        """See `Part.jobs`."""
        return [
            Job(
                arguments=asked.arguments,
                prompt=asked.prompt,
                negative_prompt=asked.negative_prompt,
            )
        ]

    def trial(self) -> list[Job]:
        """See `Part.trial`."""
        return [Job(arguments=self._call.trial({}), prompt=_TRIAL_PROMPT)]

    def compute(self, jobs: Sequence[Job], watch: Watch) -> list[Made]:  # noqa: ARG002
        """See `Part.compute`."""
        with torch.no_grad():
            return [self._encode(job) for job in jobs]

    def _encode(self, job: Job) -> Made:
        values = self._call.effective(job.arguments)
        made = self._family.encode(self._pipeline, job.prompt, job.negative_prompt, values)
        return tuple(
            (OutputName(name), tensor_payload(PayloadKind.EMBEDDINGS, tensor))
            for name, tensor in made.items()
        )


class Denoiser(Part):
    """Embeddings to latents: the pipeline's call, told to stop before its VAE."""

    takes_prompt = False

    def __init__(
        self,
        pipeline: Any,
        call: PipelineCall,
        dtype: Any,
        *,
        family: Family,
        output: OutputName,
    ) -> None:
        super().__init__(pipeline, call, dtype)
        self._family = family
        self._output = output
        self._masks = {one.name for one in family.embeddings if one.is_mask}

    @property
    def ports(self) -> tuple[OutputName, ...]:
        """See `Part.ports`."""
        return tuple(OutputName(embedding.name) for embedding in self._family.embeddings)

    @property
    def grid(self) -> Grid:
        """See `Part.grid`."""
        return self._family.grid(self._pipeline)

    def jobs(self, asked: Asked) -> list[Job]:
        """See `Part.jobs`."""
        several = [name for name, tensors in asked.tensors.items() if len(tensors) > 1]
        if several:
            raise EngineFailed(f"the denoiser got more than one {several[0]} for one request")
        arrived = {name: tensors[0] for name, tensors in asked.tensors.items() if tensors}
        values = self._call.effective(asked.arguments)
        guided = self._family.is_guided(values, negative="negative_prompt_embeds" in arrived)
        wanted = {
            embedding.name: embedding.need
            for embedding in self._family.embeddings
            if guided or embedding.need is Need.ALWAYS
        }
        missing = sorted(
            name
            for name, need in wanted.items()
            if name not in arrived and need is not Need.OPTIONAL
        )
        if missing:
            raise EngineFailed(
                f"the denoiser got no {' and no '.join(missing)}; the stages of a split pipeline "
                "need the same engineArgs.defaults, so that all agree on the guidance"
            )
        tensors = {name: arrived[name] for name in wanted if name in arrived}
        return [
            Job(arguments=asked.arguments, seed=asked.seed + index, tensors=tensors)
            for index in range(asked.count)
        ]

    def trial(self) -> list[Job]:
        """See `Part.trial`."""
        embeddings = self._family.sample_embeddings(self._pipeline)
        return [Job(arguments=self._small(self.grid), tensors=embeddings)]

    def compute(self, jobs: Sequence[Job], watch: Watch) -> list[Made]:
        """See `Part.compute`."""
        arguments = {
            name: value
            for name, value in _arguments_of(jobs).items()
            if not name.startswith(("prompt", "negative_prompt"))
        }
        embeddings = {name: self._batch(name, jobs) for name in jobs[0].tensors}
        count_steps(self._pipeline, watch.step)
        with _refusals():
            latents = self._pipeline(
                **arguments,
                **embeddings,
                generator=_row([_generator(job) for job in jobs]),
                output_type="latent",
                return_dict=True,
            )[0]
        values = self._call.effective(arguments)
        return [
            (
                (
                    self._output,
                    tensor_payload(
                        PayloadKind.LATENTS, self._family.unfold(self._pipeline, one, values)
                    ),
                ),
            )
            for one in latents.split(1)
        ]

    def _batch(self, name: str, jobs: Sequence[Job]) -> Any:
        tensors = [job.tensors[name] for job in jobs]
        batch = self._on_device(tensors[0] if len(tensors) == 1 else torch.cat(tensors))
        return batch.to(torch.bool) if name in self._masks else batch


class Decoder(Part):
    """Latents to pixels or samples, one item at a time: alike or not, and in bounded memory."""

    takes_prompt = False
    draws_noise = False

    def __init__(
        self,
        pipeline: Any,
        call: PipelineCall,
        dtype: Any,
        *,
        family: Family,
        output: OutputName,
    ) -> None:
        super().__init__(pipeline, call, dtype)
        self._family = family
        self._output = output

    @property
    def ports(self) -> tuple[OutputName, ...]:
        """See `Part.ports`."""
        return (OutputName("latents"),)

    @property
    def grid(self) -> Grid:
        """See `Part.grid`; sizes come with the latents."""
        return Grid()

    def jobs(self, asked: Asked) -> list[Job]:
        """See `Part.jobs`."""
        latents = [row for one in asked.tensors.get("latents", ()) for row in one.split(1)]
        if not latents:
            raise EngineFailed("the decoder got no latents")
        return [
            Job(arguments=asked.arguments, seed=asked.seed + index, tensors={"latents": one})
            for index, one in enumerate(latents)
        ]

    def trial(self) -> list[Job]:
        """See `Part.trial`."""
        latents = self._family.sample_latents(self._pipeline)
        return [Job(arguments=self._call.trial({}), tensors={"latents": latents})]

    def compute(self, jobs: Sequence[Job], watch: Watch) -> list[Made]:  # noqa: ARG002
        """See `Part.compute`."""
        with torch.no_grad():
            return [self._decode(job) for job in jobs]

    def _decode(self, job: Job) -> Made:
        latents = job.tensors["latents"].to(self._pipeline.device)
        expected = self._family.sample_latents(self._pipeline)
        if latents.dim() != expected.dim():
            raise EngineFailed(
                f"the decoder got latents of shape {tuple(latents.shape)}; it needs "
                f"{expected.dim()} dimensions. Do both stages run the same model?"
            )
        values = self._call.effective(job.arguments)
        content = self._family.decode(self._pipeline, latents, values, job.seed)
        kind = self._family.kind
        rate = _rate(self._pipeline, self._family, self._call, kind)
        return ((self._output, _result_payload(kind, content, rate)),)


def part_of(
    pipeline: Any,
    call: PipelineCall,
    dtype: str,
    component: Component,
    family: Family | None,
    produces: Mapping[OutputName, PayloadKind],
) -> Part:
    """The part of a loaded pipeline that a stage computes.

    Args:
        pipeline: With the submodules that the component needs.
        call: What the pipeline can be told.
        dtype: What type it computes in.
        component: Which part.
        family: Of the pipeline; None is possible for `whole` only.
        produces: The stage's outputs by its template, checked against the component.
    """
    common = (pipeline, call, torch_type(dtype))
    output, kind = next(iter(produces.items()))
    if component is Component.WHOLE or family is None:
        return Whole(*common, family=family, output=output, kind=kind)
    if component is Component.TEXT_ENCODER:
        return TextEncoder(*common, family=family)
    of = Denoiser if component is Component.DENOISER else Decoder
    return of(*common, family=family, output=output)


def _result_payload(kind: PayloadKind, content: Any, rate_hz: int) -> Payload:
    if kind is not PayloadKind.WAVEFORM:
        return tensor_payload(kind, pixels(content), rate_hz=rate_hz)
    channels = np.atleast_2d(np.asarray(content, dtype=np.float32))
    samples = channels[0] if len(channels) == 1 else channels.T
    return tensor_payload(kind, np.ascontiguousarray(samples), rate_hz=rate_hz)


def _rate(pipeline: Any, family: Family | None, call: PipelineCall, kind: PayloadKind) -> int:
    if kind is PayloadKind.IMAGE:
        return 0
    if kind is PayloadKind.VIDEO:
        return call.frame_rate(16 if family is None else family.rate_hz(pipeline))
    if family is not None:
        return family.rate_hz(pipeline)
    for part in ("vocoder", "vae"):
        config = getattr(getattr(pipeline, part, None), "config", {})
        if rate := getattr(config, "sampling_rate", 0):
            return int(rate)
    raise SetupError(
        f"{type(pipeline).__name__} does not say at which rate it makes samples", field="produces"
    )


def _arguments_of(jobs: Sequence[Job]) -> dict[str, Any]:
    """Of jobs that are alike; a copy, since pipelines take things out of what they are given."""
    return deepcopy(dict(jobs[0].arguments))


def _generator(job: Job) -> Any:
    return torch.Generator("cpu").manual_seed(job.seed)


def _row(values: Sequence[Any]) -> Any:
    """One value as it is, several as a list: what pipelines take for a batch."""
    return values[0] if len(values) == 1 else list(values)


@contextmanager
def _refusals() -> Iterator[None]:
    """What a pipeline's own check of its arguments says, as a refusal of the request."""
    try:
        yield
    except ValueError as error:
        if not any(
            frame.f_code.co_name == "check_inputs" for frame, _ in walk_tb(error.__traceback__)
        ):
            raise
        raise InvalidRequest(f"the model refuses the request: {truncated(str(error))}") from error
