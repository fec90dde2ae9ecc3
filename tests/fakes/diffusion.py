"""Tiny pipelines of the six families that can be split, and engines made of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from fakes.engine_io import RecordedOutputs, engine_request, engine_spec, text
from omnistage_common.payloads import DiffusionParameters, Parameters, Payload, PayloadKind
from omnistage_stage.engines.diffusers import DiffusersEngine
from omnistage_stage.engines.protocol import EngineRequest

__all__ = ["TINY", "TinyFamily", "ask", "decoded", "engine_for", "made", "ports", "split_engines"]


class TinyFamily(Struct, frozen=True, kw_only=True):
    """One of them, and what to ask of it."""

    name: str
    """Stands after `tiny://`."""
    kind: PayloadKind
    embeddings: tuple[str, ...]
    asked: DiffusionParameters
    """Small, with guidance."""
    called: dict[str, Any]
    """The same for the pipeline's own call."""
    defaults: dict[str, Any] = {}

    @property
    def model(self) -> str:
        """Its source."""
        return f"tiny://{self.name}"

    def produces(self, component: str) -> dict[str, PayloadKind]:
        """What a template says of a stage with this component."""
        match component:
            case "text-encoder":
                return dict.fromkeys(self.embeddings, PayloadKind.EMBEDDINGS)
            case "denoiser":
                return {"latents": PayloadKind.LATENTS}
            case _:
                return {self.kind.value: self.kind}


_GUIDED = ("prompt_embeds", "negative_prompt_embeds")
_POOLED = (*_GUIDED, "pooled_prompt_embeds", "negative_pooled_prompt_embeds")

TINY: Mapping[str, TinyFamily] = {
    family.name: family
    for family in (
        TinyFamily(
            name="stable-diffusion-3",
            kind=PayloadKind.IMAGE,
            embeddings=_POOLED,
            asked=DiffusionParameters(width=64, height=48, steps=2, guidance_scale=4.0),
            called={
                "width": 64,
                "height": 48,
                "num_inference_steps": 2,
                "guidance_scale": 4.0,
                "max_sequence_length": 32,
            },
            defaults={"max_sequence_length": 32},
        ),
        TinyFamily(
            name="flux",
            kind=PayloadKind.IMAGE,
            embeddings=_POOLED,
            asked=DiffusionParameters(
                width=64, height=48, steps=2, guidance_scale=5.0, true_cfg_scale=2.0
            ),
            called={
                "width": 64,
                "height": 48,
                "num_inference_steps": 2,
                "guidance_scale": 5.0,
                "true_cfg_scale": 2.0,
                "max_sequence_length": 32,
            },
            defaults={"max_sequence_length": 32},
        ),
        TinyFamily(
            name="qwen-image",
            kind=PayloadKind.IMAGE,
            embeddings=_GUIDED,
            asked=DiffusionParameters(width=64, height=48, steps=2, true_cfg_scale=4.0),
            called={
                "width": 64,
                "height": 48,
                "num_inference_steps": 2,
                "true_cfg_scale": 4.0,
            },
        ),
        TinyFamily(
            name="wan",
            kind=PayloadKind.VIDEO,
            embeddings=_GUIDED,
            asked=DiffusionParameters(width=64, height=48, steps=2, guidance_scale=6.0, frames=5),
            called={
                "width": 64,
                "height": 48,
                "num_inference_steps": 2,
                "guidance_scale": 6.0,
                "num_frames": 5,
                "max_sequence_length": 16,
            },
            defaults={"max_sequence_length": 16},
        ),
        TinyFamily(
            name="ltx",
            kind=PayloadKind.VIDEO,
            embeddings=(*_GUIDED, "prompt_attention_mask", "negative_prompt_attention_mask"),
            asked=DiffusionParameters(width=64, height=32, steps=2, guidance_scale=3.0, frames=5),
            called={
                "width": 64,
                "height": 32,
                "num_inference_steps": 2,
                "guidance_scale": 3.0,
                "num_frames": 5,
                "max_sequence_length": 16,
            },
            defaults={"max_sequence_length": 16},
        ),
        TinyFamily(
            name="stable-audio",
            kind=PayloadKind.WAVEFORM,
            embeddings=(*_GUIDED, "attention_mask", "negative_attention_mask"),
            asked=DiffusionParameters(steps=2, guidance_scale=6.0, seconds=0.5),
            called={"num_inference_steps": 2, "guidance_scale": 6.0, "audio_end_in_s": 0.5},
        ),
    )
}


@asynccontextmanager
async def engine_for(
    family: TinyFamily, component: str = "whole", *, max_running: int = 8, **args: Any
) -> AsyncIterator[DiffusersEngine]:
    """A loaded engine."""
    engine = DiffusersEngine(
        engine_spec(
            family.produces(component),
            max_running=max_running,
            **{
                "model": family.model,
                "component": component,
                "defaults": family.defaults,
                **args,
            },
        )
    )
    await engine.load()
    try:
        yield engine
    finally:
        await engine.close()


def ask(
    family: TinyFamily,
    prompt: str,
    *,
    seed: int | None = 7,
    inputs: Mapping[str, tuple[Payload, ...]] | None = None,
    **changed: Any,
) -> EngineRequest:
    """A request as the family's `asked` says, but for what is changed."""
    fields = {name: getattr(family.asked, name) for name in family.asked.__struct_fields__}
    return engine_request(
        {"prompt": (text(prompt),)} if inputs is None else inputs,
        Parameters(seed=seed, diffusion=DiffusionParameters(**(fields | changed))),
    )


def ports(outputs: RecordedOutputs) -> dict[str, tuple[Payload, ...]]:
    """What one stage made, as it arrives at the next."""
    return {name: (payload,) for name, _, payload in outputs.pieces}


async def made(engine: DiffusersEngine, request: EngineRequest) -> RecordedOutputs:
    """What an engine makes of a request."""
    outputs = RecordedOutputs()
    await engine.run(request, outputs)
    return outputs


async def decoded(
    engines: Mapping[str, DiffusersEngine], family: TinyFamily, prompt: str, **asked: Any
) -> tuple[RecordedOutputs, RecordedOutputs]:
    """What a split pipeline makes: latents, and what they are."""
    embeddings = await made(engines["text-encoder"], ask(family, prompt, **asked))
    arrived = ports(embeddings)
    latents = await made(engines["denoiser"], ask(family, prompt, inputs=arrived, **asked))
    result = await made(
        engines["decoder"], ask(family, prompt, inputs={"latents": latents.payloads}, **asked)
    )
    return latents, result


@asynccontextmanager
async def split_engines(
    family: TinyFamily, **args: Any
) -> AsyncIterator[dict[str, DiffusersEngine]]:
    """The three engines of a split pipeline, by component."""
    async with (
        engine_for(family, "text-encoder", **args) as encoder,
        engine_for(family, "denoiser", **args) as denoiser,
        engine_for(family, "decoder", **args) as decoder,
    ):
        yield {"text-encoder": encoder, "denoiser": denoiser, "decoder": decoder}
