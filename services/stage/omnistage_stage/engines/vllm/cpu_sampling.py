"""Seeds on CPUs, also of prompts that are read in several steps (foreign: the insides of vLLM).

While a prompt is not read to its end, vLLM samples for it and throws the token away. It then turns
the request's random generator back by an offset that only generators of GPUs have; one of a CPU
raises, and with it ends the engine, for everybody. Here the generators of such requests are put
aside for that step. Nothing is drawn from them, so a seed gives the same tokens in however many
steps its prompt is read, and after it was computed again.
"""

from typing import Any

__all__ = ["spare_generators"]


def spare_generators(runner: Any) -> None:
    """Has a model runner draw nothing for requests whose sample it will throw away.

    Args:
        runner: vLLM's model runner of a CPU, in this process.
    """
    sample = runner.sample_tokens

    def sample_tokens(grammar: Any) -> Any:
        generators = runner.input_batch.generators
        unread = runner.discard_request_mask.np
        spared = {index: generators.pop(index) for index in list(generators) if unread[index]}
        try:
            return sample(grammar)
        finally:
            generators.update(spared)

    runner.sample_tokens = sample_tokens
