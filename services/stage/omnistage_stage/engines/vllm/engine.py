"""The engine `vllm`: a conversation in, with recordings and pictures; text, tokens and rows out.

Chat template, tokenizer and processor run in a thread of their own (long prompts take milliseconds),
the model in the step loop's thread; the event loop only carries messages between them. vLLM batches
whatever runs at the same time; a request gets what it would have got alone, up to rounding.
"""

from typing import Final

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import Conversation, Message, Parameters, TextPart
from omnistage_stage.engines.arguments import parse_arguments
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.vllm.arguments import VllmArguments
from omnistage_stage.engines.vllm.core import Order, VllmCore
from omnistage_stage.engines.vllm.loading import load_core, purpose_of
from omnistage_stage.engines.vllm.outputs import Made, asked_outputs, delivering
from omnistage_stage.engines.vllm.prompting import (
    Question,
    Reader,
    generation_of,
    question_of,
    read_prompt,
)
from omnistage_stage.engines.vllm.spreading import spread_of
from omnistage_stage.engines.vllm.stepping import StepLoop
from omnistage_stage.engines.workers import WorkerThreads

__all__ = ["VllmEngine"]

_PROBE = Question(
    conversation=Conversation(messages=(Message(role="user", parts=(TextPart(text="Hello"),)),))
)


class VllmEngine:
    """Generates from a conversation; see the package for its parts."""

    takes_parallelism: Final = True

    _reader: Reader
    """Made with the model."""

    def __init__(self, spec: EngineSpec) -> None:
        self._arguments = parse_arguments(spec.args, VllmArguments)
        self._spec = spec
        self._asked = asked_outputs(spec)
        self._spread = spread_of(spec, self._arguments)
        self._purpose = purpose_of(spec, self._arguments)
        self._steps: StepLoop[Order, Made] = StepLoop(self._make_core, name=f"vllm-{spec.stage}")
        self._reading = WorkerThreads(name="reading", size=1)

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
        order = await self._order(_PROBE, Parameters(max_tokens=1, temperature=0))
        finish = await self._steps.run(order, lambda _made: None)
        if not finish.output_tokens:
            raise EngineFailed("the model generated nothing when it was tried")

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Generates the answer to one conversation.

        Raises:
            InvalidRequest: Messages or parameters are not what the model takes; names the field.
            DeadlineExceeded: There was no room for hidden states before the request's deadline.
            EngineFailed: vLLM failed.
        """
        order = await self._order(
            question_of(request.inputs, self._reader.takes), request.parameters
        )
        prompt, _ = order
        async with delivering(self._asked, outputs) as deliver:
            deliver(Made(prompt_tokens=prompt.tokens))
            finish = await self._steps.run(order, deliver)
        return EngineResult(
            finish_reason=finish.reason,
            input_tokens=finish.input_tokens,
            output_tokens=finish.output_tokens,
        )

    async def close(self) -> None:
        """Frees the model and ends both threads."""
        await self._steps.stop()
        self._reading.close()

    def _make_core(self) -> VllmCore:
        core = load_core(self._spec, self._arguments, self._purpose, self._spread)
        self._reader = core.reader
        return core

    async def _order(self, question: Question, parameters: Parameters) -> Order:
        reader = self._reader
        prompt = await self._reading.compute(lambda _work: read_prompt(question, reader))
        room = reader.context - len(prompt.tokens)
        return prompt, generation_of(parameters, self._arguments.defaults, room)
