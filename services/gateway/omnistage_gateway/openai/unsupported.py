"""Fields that clients send to chat completions and that are not supported, each with what to do instead.

All of them would change the answer, so ignoring one would give an answer to another request than the
one that was sent. A client that sends one with the value that means "off" gets its answer.
"""

from collections.abc import Mapping
from typing import Final

from omnistage_gateway.openai.refusals import Unsupported

__all__ = ["UNSUPPORTED"]


_AS_GENERATED: Final = "leave it out; the answer is the text as generated"
_SAMPLING: Final = (
    "leave it out; sampling is set by temperature, top_p, presence_penalty, frequency_penalty "
    "and seed"
)
_NO_TOOLS: Final = "leave it out; models here call no tools"
_NO_LOGPROBS: Final = "leave it out; token probabilities are not reported"
_NO_STRUCTURE: Final = "leave it out and ask for the format in a message"

UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    # OpenAI's own.
    "function_call": Unsupported(remedy=_NO_TOOLS, off=("none", "auto")),
    "functions": Unsupported(remedy=_NO_TOOLS, off=([],)),
    "logit_bias": Unsupported(remedy=_SAMPLING, off=({},)),
    "logprobs": Unsupported(remedy=_NO_LOGPROBS, off=(False,)),
    "moderation": Unsupported(remedy="leave it out; nothing here is moderated"),
    "prediction": Unsupported(remedy="leave it out; predicted outputs are not used"),
    "reasoning_effort": Unsupported(
        remedy="leave it out; models here do not reason before they answer", off=("none",)
    ),
    "response_format": Unsupported(remedy=_NO_STRUCTURE, off=({"type": "text"},)),
    "tool_choice": Unsupported(remedy=_NO_TOOLS, off=("none", "auto")),
    "tools": Unsupported(remedy=_NO_TOOLS, off=([],)),
    "top_logprobs": Unsupported(remedy=_NO_LOGPROBS, off=(0,)),
    "verbosity": Unsupported(remedy="leave it out and ask for brevity in a message"),
    "web_search_options": Unsupported(remedy="leave it out; nothing here searches the web"),
    # Extensions of other servers that clients pass along.
    "best_of": Unsupported(remedy="leave it out; one answer is generated", off=(1,)),
    "guided_choice": Unsupported(remedy=_NO_STRUCTURE),
    "guided_grammar": Unsupported(remedy=_NO_STRUCTURE),
    "guided_json": Unsupported(remedy=_NO_STRUCTURE),
    "guided_regex": Unsupported(remedy=_NO_STRUCTURE),
    "include_stop_str_in_output": Unsupported(remedy=_AS_GENERATED, off=(False,)),
    "length_penalty": Unsupported(remedy=_SAMPLING, off=(1,)),
    "min_p": Unsupported(remedy=_SAMPLING, off=(0,)),
    "min_tokens": Unsupported(remedy=_SAMPLING, off=(0,)),
    "repetition_penalty": Unsupported(remedy=_SAMPLING, off=(1,)),
    "skip_special_tokens": Unsupported(remedy=_AS_GENERATED, off=(True,)),
    "stop_token_ids": Unsupported(remedy="use `stop` with strings instead", off=([],)),
    "structured_outputs": Unsupported(remedy=_NO_STRUCTURE),
    "top_k": Unsupported(
        remedy=_SAMPLING,
        off=(
            -1,
            0,
        ),
    ),
    "use_beam_search": Unsupported(remedy=_SAMPLING, off=(False,)),
}
"""Known fields that would change the answer, and what to do instead."""
