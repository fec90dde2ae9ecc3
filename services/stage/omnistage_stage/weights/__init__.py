"""Weights: from a model source to checked files on disk. Engines use `weights_of` and no more."""

from omnistage_stage.weights.progress import Progress, logged, silent
from omnistage_stage.weights.resolving import Weights, weights_of

__all__ = ["Progress", "Weights", "logged", "silent", "weights_of"]
