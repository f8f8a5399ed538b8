"""Files that are compiled and called under guard pages, for `tools/fuzz.py KIND FIRST:LAST --call`.

A stray access ends the worker, which counts as `killed`. A seed guards one end of each buffer: the last byte where it
is even, the first where it is odd.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

import ingot
from ingot.ir.types import DTYPES
from ingot.pipeline.build import identity
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.expr import OPERATORS, Expr, evaluate
from ingot.runtime.program import TensorSpec
from ingot.support.errors import IngotError, VerifyError
from tools.fuzz_formats import READERS, Files, corpus, mutated
from tools.mutations import mutate_bytes, mutate_text, mutate_wire, mutate_words

_SIZES = (1, 2, 3, 5, 13, 0)
_MAX_ELEMENTS = 1 << 20  # of an input: more are not called
_CALLS = 2  # with other values, and other sizes where they are open
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-45, 2.5, 1e9, -3.0)
_INTEGERS = (0, 1, -1, 2, 3, -2, 5, 7, 64, 127, 1 << 31, -(1 << 31), 1 << 40, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))
LIMITS = ingot.Limits(seconds=20, sizes=1 << 12, iterations=64)
_called: set[bytes] = set()  # digests of graphs: half of the mutations change nothing that is compiled


def call(read: Callable[[Path], object], path: Path, seed: int) -> None:
    """Compile a file and call the model; a graph that was called before, only read. Raises what a fault raises."""
    from tests.guard import ENDS, guarded

    try:
        graph = getattr(opened := read(path), "graph", opened)
        digest = hashlib.blake2b(b"".join(identity(graph)), digest_size=16).digest()  # type: ignore[arg-type]
    except IngotError:
        digest = b""  # which values of inputs decide, or what the host computes
    if digest in _called:
        return
    whole = next((f for f in path.parents if (f / "saved_model.pb").exists() or (f / "config.json").exists()), path)
    with guarded(ENDS[seed % 2]):
        model = ingot.compile(whole, threads=1, limits=LIMITS)
        refusals = [_refusal(model, random.Random((seed, i).__hash__())) for i in range(_CALLS)]
    _called.add(digest)
    if all(refusals):
        raise refusals[0]  # type: ignore[misc]


def _refusal(model: ingot.CompiledModel, rng: random.Random) -> IngotError | None:
    """Why a call with random sizes and values is refused; None where it has an answer."""
    sizes: dict[str, int] = {}
    try:
        model(**{spec.name: _array(spec, sizes, rng) for spec in model.inputs})
    except VerifyError:  # of a plan, which is not the call's
        raise
    except IngotError as refusal:
        return refusal
    return None


def _array(spec: TensorSpec, sizes: dict[str, int], rng: random.Random) -> np.ndarray:
    """Values for an input; `sizes` takes those of its symbols."""
    try:
        shape = tuple(_size(dim, sizes, rng) for dim in spec.shape)
    except IngotError:  # of no rank
        shape = tuple(rng.choice(_SIZES) for _ in range(rng.randrange(4)))
    count = int(np.prod(shape, dtype=object))
    if not 0 <= count <= _MAX_ELEMENTS:
        raise IngotError(f"input {spec.name}", expected=f"0 to {_MAX_ELEMENTS} elements", got=shape)
    if spec.dtype not in DTYPES:
        raise IngotError(f"input {spec.name}", expected="numbers", got=spec.dtype or "any type")
    dtype = numpy_dtype(spec.dtype)
    random_bits = np.random.default_rng(rng.randrange(1 << 32))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        choices = [n for n in _INTEGERS if info.min <= n <= info.max]
        most = rng.choice((3, 6, len(choices)))
        return random_bits.choice(np.array(choices[:most], dtype), shape)
    if dtype.kind == "b":
        return random_bits.random(shape) < rng.choice((0.0, 0.5, 1.0))
    plain = random_bits.normal(size=shape)
    if rng.random() < 0.5:
        return plain.astype(dtype)
    with np.errstate(all="ignore"):
        return np.where(random_bits.random(shape) < 0.3, random_bits.choice(np.array(_FLOATS), shape), plain).astype(
            dtype
        )


def _size(dim: Expr, sizes: dict[str, int], rng: random.Random) -> int:
    if isinstance(dim, int):
        return dim
    for name in dim:
        if isinstance(name, str) and name not in OPERATORS:
            sizes.setdefault(name, rng.choice(_SIZES))
    return evaluate(dim, sizes)


# --- formats


def call_format(kind: str, seed: int) -> None:
    """A mutated file of a format beside ONNX."""
    rng = random.Random(seed)
    files = rng.choice(models(kind))
    (first, data), *others = files.items()
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        for name, content in [*others, (first, mutated(data, partial(_damaged, kind, rng=rng)))]:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        read = _unread if kind in _LANGUAGE else READERS[kind][1]
        call(read, Path(folder) / first, seed)


def call_program(path: Path, seed: int) -> None:
    """A saved program, loaded and called: its code is trusted, its plan need not be."""
    from tests.guard import ENDS, guarded

    with guarded(ENDS[seed % 2]):
        model = ingot.load(path)
        if refusal := _refusal(model, random.Random(seed)):
            raise refusal


def _unread(path: Path) -> object:
    raise IngotError("only the compiler reads language models")


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def _damaged(kind: str, data: bytes, rng: random.Random) -> bytes:
    """Mostly of numbers, so that it is still a file of its kind; of a large one in its header, as numbers behind it
    damage little."""
    if rng.random() < 0.2:
        return mutate_bytes(data, rng)
    if kind in _NUMBERS_OF:
        return _NUMBERS_OF[kind](data, rng)
    head = min(len(data), 1 << 12)
    return mutate_bytes(data[:head], rng) + data[head:]


_NUMBERS_OF = {"stablehlo": mutate_text, "tflite": mutate_words, "tensorflow": mutate_wire}


@cache
def models(kind: str) -> tuple[Files, ...]:
    return tuple(_LANGUAGE[kind]()) if kind in _LANGUAGE else corpus(kind)


def _gguf() -> Sequence[Files]:
    """Tiny Llamas in floats and in blocks of 8 bits."""
    from tests.language.tiny import write

    with tempfile.TemporaryDirectory() as folder:
        paths = [write(Path(folder) / f"{i}.gguf", template=None, is_quantized=bool(i)) for i in range(2)]
        return [{"model.gguf": path.read_bytes()} for path in paths]


def _safetensors() -> Sequence[Files]:
    """A tiny Llama as a folder of Hugging Face; each of its files is the one that is mutated."""
    from ingot.support import safetensors

    width, inner, words, heads = 32, 48, 61, 4
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": words, "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "tie_word_embeddings": True,
    }  # fmt: skip
    layer, keys = "model.layers.0", 2 * width // heads
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (words, width), "model.norm": (width,), f"{layer}.input_layernorm": (width,),
        f"{layer}.post_attention_layernorm": (width,), f"{layer}.self_attn.q_proj": (width, width),
        f"{layer}.self_attn.k_proj": (keys, width), f"{layer}.self_attn.v_proj": (keys, width),
        f"{layer}.self_attn.o_proj": (width, width), f"{layer}.mlp.gate_proj": (inner, width),
        f"{layer}.mlp.up_proj": (inner, width), f"{layer}.mlp.down_proj": (width, inner),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    arrays = {f"{name}.weight": rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        safetensors.write(Path(folder) / "model.safetensors", arrays)
        content = {
            "config.json": json.dumps(config).encode(),
            "model.safetensors": (Path(folder) / "model.safetensors").read_bytes(),
        }
    return [{first: content[first], **content} for first in content]


_LANGUAGE = {"gguf": _gguf, "safetensors": _safetensors}
