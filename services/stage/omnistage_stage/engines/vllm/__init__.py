"""Text, tokens and hidden states from text, audio and images, with vLLM in this process.

engine            the Engine: requests in, pieces of outputs and counts out
arguments         engineArgs
outputs           the outputs by name, and how they go out
prompting         conversation and parameters -> what the model is asked, checked
multimodal        recordings and pictures as a model's processor takes them
stepping          the one thread, its mailbox, one event-loop callback per step; knows no vLLM
loading           weights, environment and vLLM's arguments (foreign: vllm)
reading           chat template, tokenizer and processor (foreign: vllm, in the reading thread)
core              vLLM's engine as what is stepped (foreign: vllm, in the step loop's thread)
hidden_states     rows out of a layer, exactly once for each position (foreign: torch)
cpu_sampling      seeds on CPUs (foreign: the insides of vLLM)
exact_features    recordings as the model's own processor takes them (foreign: vllm)
vision_operators  torchvision beside a torch of another build (foreign: torch)
"""

from omnistage_stage.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
