"""A model's chat template, tokenizer and processor, by way of vLLM's renderer (foreign: vllm).

The processor turns recordings and pictures into features and puts as many placeholders into the
prompt as each takes; vLLM does so exactly as the model's own Hugging Face processor. It runs in the
reading thread, never in the step loop's: a long recording takes tens of milliseconds.
"""

import logging
from typing import Any, Final

from omnistage_common.errors import MissingDependency, SetupError
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.vllm.multimodal import picture, waveform
from omnistage_stage.engines.vllm.prompting import ChatMessage, Prompt, Question

__all__ = ["VllmReader"]

_KINDS: Final = {"audio": PayloadKind.WAVEFORM, "image": PayloadKind.IMAGE}
"""vLLM's names of what a model takes."""


class VllmReader:
    """Makes prompts for one loaded engine."""

    def __init__(self, engine: Any) -> None:
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415

        self._refusal = VLLMClientError
        self._renderer = engine.renderer
        self._tokenizer = engine.get_tokenizer()
        self._context = int(engine.model_config.max_model_len)
        self._processor = self._renderer.mm_processor
        limits = self._processor.info.allowed_mm_limits if self._processor else {}
        self._takes = frozenset(kind for name, kind in _KINDS.items() if limits.get(name))
        self._rate_hz = self._heard_rate() if PayloadKind.WAVEFORM in self._takes else 0
        self._template: str | None = None
        if self._takes:
            self._template = self._chat_template(engine.model_config)
            self._check_places()
            # Says twice for each recording or picture that threads are bound already.
            logging.getLogger("vllm.v1.worker.cpu_worker").setLevel(logging.ERROR)

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together."""
        return self._context

    @property
    def takes(self) -> frozenset[PayloadKind]:
        """Which of waveforms and images the model takes and the template brings."""
        return self._takes

    def tokens(self, messages: list[ChatMessage]) -> list[int]:
        """The prompt's tokens, ready for the answer, with one placeholder for each medium.

        Raises:
            ValueError: The template refuses the messages.
        """
        from jinja2 import TemplateError  # noqa: PLC0415

        try:
            tokens = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error
        return list(tokens)

    def prompt(self, tokens: list[int], question: Question) -> Prompt:
        """The prompt with the media of the question in it.

        Raises:
            ValueError: The processor refuses a medium.
            OmnistageError: A medium is not what it should be.
        """
        media = {
            "audio": [
                (waveform(question.audio[i], i, self._rate_hz), self._rate_hz)
                for i in question.audio_order
            ],
            "image": [picture(question.images[i], i) for i in question.image_order],
        }
        media = {name: items for name, items in media.items() if items}
        if not media:
            return Prompt(tokens=tokens, engine_input={"type": "token", "prompt_token_ids": tokens})
        try:
            (rendered,) = self._renderer.render_cmpl(
                [{"prompt_token_ids": tokens, "multi_modal_data": media}]
            )
        except (self._refusal, ValueError) as error:
            raise ValueError(_innermost(error)) from error
        return Prompt(tokens=list(rendered["prompt_token_ids"]), engine_input=rendered)

    def _heard_rate(self) -> int:
        try:
            import soxr  # noqa: F401, PLC0415
        except ImportError as error:
            raise MissingDependency(
                "audio inputs need soxr. Install it: pip install soxr"
            ) from error
        return int(self._processor.info.get_data_parser().audio_resampler.target_sr)

    def _chat_template(self, model_config: Any) -> str:
        from vllm.renderers.hf import resolve_chat_template  # noqa: PLC0415

        template = resolve_chat_template(self._tokenizer, None, None, model_config=model_config)
        if template is None:
            raise SetupError("the checkpoint has no chat template", field="model")
        return str(template)

    def _check_places(self) -> None:
        """Refuses a chat template that would leave recordings or pictures out."""
        for name, kind in _KINDS.items():
            if kind in self._takes and self._asked([{"type": name}]) == self._asked([]):
                raise SetupError(
                    f"the checkpoint's chat template has no place for message parts of type "
                    f"{name}, which the model takes",
                    field="model",
                )

    def _asked(self, parts: list[dict[str, str]]) -> list[int]:
        try:
            return self.tokens([{"role": "user", "content": parts}])
        except ValueError:
            return []


def _innermost(error: BaseException) -> str:
    """What a processor says itself; vLLM wraps it in all the samples or pixels of the request."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)
