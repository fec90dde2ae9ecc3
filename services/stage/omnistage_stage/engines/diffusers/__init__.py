"""Diffusion models with diffusers: a pipeline as one stage, or as text encoder, denoiser, decoder.

engine      the Engine: requests in, embeddings, latents, pictures, videos and sounds out
arguments   engineArgs
folder      what a model folder must hold for a component, checked before anything is loaded
calling     what a request says -> keyword arguments of the pipeline's `__call__`, checked
jobs        one thing to make, and what makes two of them alike enough for one batch
grouping    who waits for company and who starts: pure, without a clock
batching    the one thread that computes, its queue, progress and cancellation; knows no diffusers
steps       stands in for a pipeline's progress bar: counts steps and stops a call that nobody wants
loading     model folder -> a pipeline with only the submodules that its component needs
shells      submodules in shape only, for those that a component does not compute with
components  what each component computes
families    what a split needs to know of one pipeline class, one module each
tensors     payloads <-> torch

Only `loading`, `shells`, `components`, `families` and `tensors` import torch and diffusers, and they
are imported when an engine loads.
"""

from omnistage_stage.engines.diffusers.engine import DiffusersEngine

__all__ = ["DiffusersEngine"]
