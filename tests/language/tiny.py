"""A GGUF file of a tiny Llama with random weights: its words are bytes, its special tokens those of ChatML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.frontends.gguf.builder import (
    ARRAY,
    F32,
    I32,
    STRING,
    U32,
    array,
    key,
    of_tensors,
    scalar,
    text,
)

WIDTH, HEADS, KEY_HEADS, INNER, LAYERS, CONTEXT = 32, 4, 2, 48, 2, 256
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokens() -> list[str]:
    """GPT-2's character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def q8_0(x: np.ndarray) -> np.ndarray:
    """f32[rows, columns] -> uint8[blocks, 34]."""
    blocks = x.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    levels = np.rint(blocks / scale.astype(np.float32)).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), levels.view(np.uint8)], 1)


def write(
    path: Path, *, template: str | None = CHATML, seed: int = 0, added: Mapping[str, np.ndarray] | None = None,
    context: int = CONTEXT, is_quantized: bool = False,
) -> Path:  # fmt: skip
    """added: to tensors by name. is_quantized: matrices of whole blocks are stored in Q8_0."""
    tokens = [*byte_tokens(), *SPECIAL]
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> tuple[str, tuple[int, ...], np.ndarray]:
        return "F32", shape, rng.normal(0, 0.3, shape).astype(np.float32)

    ones = ("F32", (WIDTH,), np.ones(WIDTH, np.float32))
    tensors = {"token_embd.weight": normal(len(tokens), WIDTH), "output.weight": normal(len(tokens), WIDTH)}
    tensors["output_norm.weight"] = ones
    for i in range(LAYERS):
        keys = KEY_HEADS * WIDTH // HEADS
        shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH)}
        shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}
        shapes |= {"ffn_down": (WIDTH, INNER)}
        tensors |= {f"blk.{i}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{i}.{name}.weight": ones for name in ("attn_norm", "ffn_norm")}
    for name, delta in (added or {}).items():
        format, shape, values = tensors[name]
        tensors[name] = format, shape, values + delta
    if is_quantized:
        wide = {name: x for name, (_, (*_, columns), x) in tensors.items() if columns % 32 == 0 and x.ndim == 2}
        tensors |= {name: ("Q8_0", x.shape, q8_0(x)) for name, x in wide.items()}
    numbers = {
        "context_length": context, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS,
    }  # fmt: skip
    ids = {"bos_token_id": 256, "eos_token_id": 257, "eot_token_id": 259}
    kinds = [1] * 256 + [3] * len(SPECIAL)
    prefix = "tokenizer.ggml."
    keys = [
        key("general.architecture", STRING, text("llama")),
        key("llama.attention.layer_norm_rms_epsilon", F32, scalar(F32, 1e-5)),
        *(key(f"llama.{name}", U32, scalar(U32, value)) for name, value in numbers.items()),
        *(key(f"{prefix}{name}", U32, scalar(U32, value)) for name, value in ids.items()),
        key(f"{prefix}model", STRING, text("gpt2")),
        key(f"{prefix}pre", STRING, text("gpt-2")),
        key(f"{prefix}tokens", ARRAY, array(STRING, [text(token) for token in tokens])),
        key(f"{prefix}merges", ARRAY, array(STRING, [])),
        key(f"{prefix}token_type", ARRAY, array(I32, [scalar(I32, kind) for kind in kinds])),
    ]
    if template is not None:
        keys.append(key("tokenizer.chat_template", STRING, text(template)))
    path.write_bytes(of_tensors(tensors, keys))
    return path


def write_adapter(path: Path) -> Path:
    """An adapter of low rank of the tiny model."""
    rng = np.random.default_rng(0)
    name = "blk.0.attn_output.weight.lora_"
    arrays = {
        f"{name}{part}": rng.normal(size=shape).astype(np.float32) for part, shape in (("a", (4, 32)), ("b", (32, 4)))
    }
    kinds = {"general.type": "adapter", "adapter.type": "lora"}
    keys = [key(k, STRING, text(v)) for k, v in kinds.items()] + [key("adapter.lora.alpha", F32, scalar(F32, 8.0))]
    path.write_bytes(of_tensors({k: ("F32", a.shape, a) for k, a in arrays.items()}, keys))
    return path
