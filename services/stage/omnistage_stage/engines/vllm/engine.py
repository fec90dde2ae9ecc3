"""The engine `vllm`: a conversation in, text deltas out.

Chat template and tokenizer run in a thread of their own (long prompts take milliseconds), the model
in the step loop's thread; the event loop only carries messages between them. vLLM batches whatever
runs at the same time; a request gets what it would have got alone, up to rounding.
"""

from typing import Any

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import (
    Conversation,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    TextPart,
)
from omnistage_stage.engines.arguments import parse_arguments, sole_output
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.vllm.arguments import VllmArguments
from omnistage_stage.engines.vllm.core import Order, VllmCore, load_core
from omnistage_stage.engines.vllm.prompting import conversation_of, generation_of, prompt_tokens
from omnistage_stage.engines.vllm.stepping import StepLoop
from omnistage_stage.engines.workers import WorkerThreads

__all__ = ["VllmEngine"]

_PROBE = Conversation(messages=(Message(role="user", parts=(TextPart(text="Hello"),)),))


class VllmEngine:
    """Generates text from a conversation; see the package for its parts."""

    def __init__(self, spec: EngineSpec) -> None:
        self._arguments = parse_arguments(spec.args, VllmArguments)
        self._spec = spec
        self._output = sole_output(spec, PayloadKind.TEXT)
        self._steps: StepLoop[Order] = StepLoop(self._make_core, name=f"vllm-{spec.stage}")
        self._tokenizing = WorkerThreads(name="tokenizing", size=1)
        self._tokenizer: Any = None
        self._context = 0

    @property
    def active(self) -> int:
        """Requests that vLLM holds."""
        return self._steps.active

    async def load(self) -> None:
        """Loads the model in its thread; the event loop stays free.

        Raises:
            SetupError: Weights, packages or arguments are not right; says which and what to do.
        """
        await self._steps.start()

    async def probe(self) -> None:
        """Generates one token for real."""
        finish = await self._steps.run(
            await self._order(_PROBE, Parameters(max_tokens=1, temperature=0)), lambda _text: None
        )
        if not finish.output_tokens:
            raise EngineFailed("the model generated nothing when it was tried")

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Generates the answer to one conversation.

        Raises:
            InvalidRequest: Messages or parameters are not what the model takes; names the field.
            EngineFailed: vLLM failed.
        """
        order = await self._order(conversation_of(request.inputs), request.parameters)
        emitted = False

        def emit(text: str) -> None:
            nonlocal emitted
            emitted = True
            outputs.emit(self._output, Payload(kind=PayloadKind.TEXT, content=text))

        finish = await self._steps.run(order, emit)
        if not emitted:
            # The model chose to say nothing; that is an answer too.
            emit("")
        return EngineResult(
            finish_reason=finish.reason,
            input_tokens=finish.input_tokens,
            output_tokens=finish.output_tokens,
        )

    async def close(self) -> None:
        """Frees the model and ends both threads."""
        await self._steps.stop()
        self._tokenizing.close()
        self._tokenizer = None

    def _make_core(self) -> VllmCore:
        core = load_core(self._spec.model, self._arguments, self._spec.max_running)
        self._tokenizer, self._context = core.tokenizer, core.context
        return core

    async def _order(self, conversation: Conversation, parameters: Parameters) -> Order:
        context = self._context
        tokens = await self._tokenizing.compute(
            lambda _work: prompt_tokens(conversation, self._apply_template, context)
        )
        room = context - len(tokens)
        return tokens, generation_of(parameters, self._arguments.defaults, room)

    def _apply_template(self, messages: list[dict[str, str]]) -> list[int]:
        from jinja2 import TemplateError  # noqa: PLC0415

        try:
            tokens = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error
        return list(tokens)
