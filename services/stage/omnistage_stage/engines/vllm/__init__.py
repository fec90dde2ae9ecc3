"""Text generation with vLLM, in this process and stepped by one thread.

engine      the Engine: requests in, text deltas and counts out
arguments   engineArgs
prompting   conversation and parameters -> what vLLM is asked, checked
stepping    the one thread, its mailbox, one event-loop callback per step; knows no vLLM
core        the only file that imports vLLM
"""

from omnistage_stage.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
