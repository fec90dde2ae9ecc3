"""Tiny checkpoints: models of real architectures, shrunk to thousandths and never trained.

They exist so that a pipeline can be tried and tested without a download and without an accelerator:
everything about them is real (file formats, tokenizer, processor, special tokens, payloads between
the stages) except that what they say and draw is noise. They load by the very code that loads the
real ones; nothing outside this folder may know that a checkpoint is tiny.
"""

from omnistage_stage.weights.tiny.catalogue import TINY_NAMES, tiny_recipe

__all__ = ["TINY_NAMES", "tiny_recipe"]
