"""Where the tokens of a prompt stand, in models whose positions have several dimensions.

Pictures make positions of time, height and width, which only the model's processor can tell; a talker
that reads the same prompt needs the same ones. vLLM works them out when it takes a request in and keeps
them as long as the request runs. Foreign: the insides of vLLM's runner.
"""

from typing import Any

from omnistage_common.errors import SetupError
from omnistage_common.payloads import ElementType, Tensor, TensorHeader

__all__ = ["PromptPositions"]


class PromptPositions:
    """Positions of the prompts in an engine, each given once."""

    def __init__(self, runner: Any) -> None:
        """Looks at the model.

        Args:
            runner: vLLM's model runner, in this process.

        Raises:
            SetupError: Positions of the model have one dimension: everybody can count them.
        """
        if not runner.uses_mrope:
            raise SetupError(
                "the positions of this model have one dimension, so there are no"
                " `prompt_positions`; remove the output from the template",
                field="produces",
            )
        self._runner = runner
        self._waiting: dict[str, int] = {}

    @property
    def requests(self) -> int:
        """Requests whose positions were not given yet."""
        return len(self._waiting)

    def begin(self, request: str, prompt_tokens: int) -> None:
        """Will give the positions of a request, by vLLM's internal id."""
        self._waiting[request] = prompt_tokens

    def end(self, request: str) -> None:
        """Forgets a request."""
        self._waiting.pop(request, None)

    def take(self, request: str) -> Tensor | None:
        """The positions, int64 [tokens, 3], once the request is under way; None ever after."""
        tokens = self._waiting.pop(request, None)
        if tokens is None:
            return None
        positions = self._runner.requests[request].mrope_positions[:, :tokens]
        rows = positions.T.long().cpu().contiguous().numpy()
        header = TensorHeader(element_type=ElementType.INT64, shape=rows.shape)
        return Tensor(header=header, data=rows.tobytes())
