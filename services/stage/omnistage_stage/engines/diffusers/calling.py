"""What a request says, as keyword arguments of a pipeline's `__call__`.

Pipelines differ in what they can be told: an image pipeline has no frames, a sound has no size. The
signature of `__call__` is the truth about that. What a request asks for and the pipeline cannot be
told is refused, never dropped, and so is what diffusers would round without a word: a size that the
model cannot make, a number of frames between two that it can.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from omnistage_common.errors import InvalidRequest, SetupError, UnsupportedModality
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    Conversation,
    DiffusionParameters,
    Message,
    Payload,
    PayloadKind,
    TextPart,
)
from omnistage_stage.engines.diffusers.arguments import DiffusionDefaults, DiffusionLimits

__all__ = ["Grid", "PipelineCall", "prompt_of"]

_CALLED: Final = {
    "width": ("width",),
    "height": ("height",),
    "steps": ("num_inference_steps",),
    "guidance_scale": ("guidance_scale",),
    "true_cfg_scale": ("true_cfg_scale",),
    "negative_prompt": ("negative_prompt",),
    "frames": ("num_frames", "video_length"),
    "frame_rate": ("frame_rate", "fps"),
    "seconds": ("audio_end_in_s", "audio_length_in_s"),
    "max_sequence_length": ("max_sequence_length",),
}
"""Our name of a value -> what pipelines call it."""
_FIELDS: Final = {"width": "size", "height": "size", "count": "n"}
"""Our name of a value -> the request's field, where that is another."""
_OURS: Final = frozenset({"prompt", "generator", "latents", "output_type", "return_dict"})
"""Arguments that the engine gives."""


class Grid(Struct, frozen=True, kw_only=True):
    """What sizes a model can make."""

    pixels: int = 1
    """Width and height are multiples of it."""
    frames: int = 1
    """The number of frames is one more than a multiple of it."""
    max_seconds: float | None = None


class PipelineCall:
    """What one pipeline can be told, and what it is told unless a request says otherwise."""

    def __init__(
        self,
        function: Callable[..., Any],
        defaults: DiffusionDefaults,
        extra: Mapping[str, Any],
    ) -> None:
        """Checks `engineArgs.defaults` and `engineArgs.call` against a signature.

        Raises:
            SetupError: They name something that the pipeline does not take.
        """
        parameters = inspect.signature(function).parameters
        self._known = {
            name: None if parameter.default is parameter.empty else parameter.default
            for name, parameter in parameters.items()
            if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
        }
        self._require_known(extra)
        given = {
            name: value for name, value in structs.asdict(defaults).items() if value is not None
        }
        # A frame rate also says how fast a video is played, where the model does not know any.
        odd = [name for name in given if self._called(name) is None and name != "frame_rate"]
        if odd:
            raise SetupError(
                f"engineArgs.defaults.{odd[0]}: this pipeline takes no {' or '.join(_CALLED[odd[0]])}",
                field=f"engineArgs.defaults.{odd[0]}",
            )
        self._negative_prompt = given.pop("negative_prompt", None)
        self._frame_rate = defaults.frame_rate
        self._given = self._renamed(given) | dict(extra)

    def takes(self, name: str) -> bool:
        """Whether `__call__` has this parameter."""
        return name in self._known

    def arguments(self, asked: DiffusionParameters) -> dict[str, Any]:
        """Keyword arguments of the call for one request, without its prompts.

        Raises:
            InvalidRequest: It asks for something that the pipeline cannot be told; names the field.
        """
        wishes = {
            name: value
            for name, value in structs.asdict(asked).items()
            if value is not None and name != "count"
        }
        for name in wishes:
            if self._called(name) is None:
                field = _FIELDS.get(name, name)
                raise InvalidRequest(f"{field}: this model cannot be told its {name}", field=field)
        wishes.pop("negative_prompt", None)
        return self._given | self._renamed(wishes)

    def trial(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for a trial: what of these wishes the pipeline can be told.

        Args:
            asked: Fields of `DiffusionParameters`.
        """
        names = {name: value for name, value in asked.items() if name in _CALLED}
        return self._given | self._renamed(names)

    def negative_prompt(self, asked: DiffusionParameters) -> str | None:
        """What the result shall not be like."""
        return self._negative_prompt if asked.negative_prompt is None else asked.negative_prompt

    def effective(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of the call by name, with the pipeline's default where none is given."""
        return self._known | dict(arguments)

    def frame_rate(self, otherwise: int) -> int:
        """Frames per second at which a video is played."""
        called = self._called("frame_rate")
        known = None if called is None else self._given.get(called, self._known[called])
        return int(self._frame_rate or known or otherwise)

    def check(self, asked: DiffusionParameters, limits: DiffusionLimits, grid: Grid) -> None:
        """Checks that a request is within what the stage allows and what the model can make.

        Raises:
            InvalidRequest: It is not; names the field and what would do.
        """
        said = self.effective(self.arguments(asked))
        values = {
            name: said.get(self._called(name) or "")
            for name in ("width", "height", "steps", "frames", "seconds")
        }
        width, height = values["width"], values["height"]
        for side in (width, height):
            if side is not None and (side < 1 or side % grid.pixels):
                raise InvalidRequest(
                    f"size {width}x{height}: width and height must be multiples of {grid.pixels}",
                    field="size",
                )
        _at_most("size", (width or 1) * (height or 1), limits.max_pixels, "pixels")
        _at_most("steps", values["steps"], limits.max_steps, "steps")
        _at_most("frames", values["frames"], limits.max_frames, "frames")
        _at_most("n", asked.count, limits.max_count, "results")
        _check_length(values["frames"], values["seconds"], grid)

    def _require_known(self, extra: Mapping[str, Any]) -> None:
        settable = {called: name for name, names in _CALLED.items() for called in names}
        for name in extra:
            field = f"engineArgs.call.{name}"
            if name not in self._known:
                allowed = ", ".join(sorted(self._known.keys() - _OURS - settable.keys()))
                raise SetupError(
                    f"{field}: this pipeline takes no such argument; it takes {allowed}",
                    field=field,
                )
            if name in settable:
                raise SetupError(f"{field}: say engineArgs.defaults.{settable[name]}", field=field)
            if name in _OURS or name.startswith(("callback", "num_")) or "_embeds" in name:
                raise SetupError(f"{field}: the engine gives this argument itself", field=field)

    def _called(self, name: str) -> str | None:
        """What this pipeline calls a value of ours; None when it does not take it."""
        return next((called for called in _CALLED[name] if called in self._known), None)

    def _renamed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            called: value
            for name, value in values.items()
            if (called := self._called(name)) is not None
        }


def prompt_of(inputs: Mapping[OutputName, tuple[Payload, ...]]) -> str:
    """The prompt: text that arrived as such, else what the user said last.

    Raises:
        InvalidRequest: There is none.
        UnsupportedModality: The user's last message holds more than text.
    """
    payloads = [payload for arrived in inputs.values() for payload in arrived]
    texts = [payload.content for payload in payloads if payload.kind is PayloadKind.TEXT]
    prompt = "".join(text for text in texts if isinstance(text, str))
    for payload in payloads:
        if not prompt and isinstance(payload.content, Conversation):
            prompt = _last_said(payload.content)
    if not prompt.strip():
        raise InvalidRequest("there is no prompt: say what to make", field="prompt")
    return prompt


def _last_said(conversation: Conversation) -> str:
    said = [message for message in conversation.messages if message.role == "user"]
    return _text_of(said[-1]) if said else ""


def _text_of(message: Message) -> str:
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    if len(texts) < len(message.parts):
        raise UnsupportedModality(
            "this model takes text only: leave images and recordings out of the last message",
            field="messages",
        )
    return "\n".join(texts)


def _at_most(field: str, value: float | None, limit: int, what: str) -> None:
    if value is not None and not 1 <= value <= limit:
        raise InvalidRequest(f"{field}: {value} {what}; must be from 1 to {limit}", field=field)


def _check_length(frames: int | None, seconds: float | None, grid: Grid) -> None:
    if frames is not None and (frames - 1) % grid.frames:
        fewer = frames - (frames - 1) % grid.frames
        raise InvalidRequest(
            f"frames: {frames}; must be one more than a multiple of {grid.frames}, for example "
            f"{fewer} or {fewer + grid.frames}",
            field="frames",
        )
    if seconds is None:
        return
    if seconds <= 0 or (grid.max_seconds is not None and seconds > grid.max_seconds):
        raise InvalidRequest(
            f"seconds: {seconds}; must be above 0 and at most {grid.max_seconds}", field="seconds"
        )
