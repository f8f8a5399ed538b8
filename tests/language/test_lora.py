"""Adapters of low rank beside the sum of the matrices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ingot.frontends.gguf import GGUFFile, GGUFWeights
from ingot.frontends.language.adapters import in_gguf, read_adapter
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.language.cache import CacheForm
from ingot.language.config import from_config
from ingot.language.layers import Network
from ingot.language.lora import LowRank, MergedWeights, merged
from ingot.language.metadata import from_metadata
from ingot.language.programs import chunk
from ingot.language.weights import ArrayWeights, Weights
from ingot.support import safetensors
from ingot.support.errors import ImportModelError
from tests.frontends.gguf.builder import F32, STRING, key, of_tensors, random_blocks, scalar, text
from tests.language.models import HEADS, SIZES, files, model
from tests.language.test_metadata import metadata, stored

RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 64), (48, 4)))


def adapter(path: Path, alpha: float = 8.0, name: str = "blk.0.attn_q.weight") -> Path:
    tensors = {f"{name}.lora_a": ("F32", A.shape, A), f"{name}.lora_b": ("F32", B.shape, B)}
    kinds = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama"}
    keys = [key(k, STRING, text(v)) for k, v in kinds.items()] + [key("adapter.lora.alpha", F32, scalar(F32, alpha))]
    path.write_bytes(of_tensors(tensors, keys))
    return path


def value(weights: Weights, name: str) -> np.ndarray:
    return interpret(Graph((), (weights.matrix(name),)), [])[0]


@pytest.mark.parametrize(("alpha", "scale", "factor"), [(8.0, 1.0, 2.0), (0.0, 0.5, 0.5), (2.0, -2.0, -1.0)])
def test_gguf_adapters_are_added(tmp_path: Path, alpha: float, scale: float, factor: float) -> None:
    blocks = random_blocks("Q8_0", 48 * 64 // 32)
    (tmp_path / "base.gguf").write_bytes(of_tensors({"blk.0.attn_q.weight": ("Q8_0", (48, 64), blocks)}))
    file = GGUFFile(tmp_path / "base.gguf")
    merged = MergedWeights(GGUFWeights(file), read_adapter(adapter(tmp_path / "a.gguf", alpha), scale))
    expected = file.tensors["blk.0.attn_q.weight"].dequantized() + factor * (B @ A)
    assert np.allclose(value(merged, "blk.0.attn_q.weight"), expected, atol=1e-5)
    assert merged.shape("blk.0.attn_q.weight") == (48, 64) and [*merged.names] == ["blk.0.attn_q.weight"]


def test_gguf_adapters_of_a_table(tmp_path: Path) -> None:
    """llama.cpp looks up rows of a, so it is stored as [vocabulary, rank]."""
    a, b = A.T.copy(), B
    tensors = {f"token_embd.weight.lora_{part}": ("F32", x.shape, x) for part, x in (("a", a), ("b", b))}
    kinds = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama"}
    keys = [key(k, STRING, text(v)) for k, v in kinds.items()] + [key("adapter.lora.alpha", F32, scalar(F32, 8.0))]
    (tmp_path / "a.gguf").write_bytes(of_tensors(tensors, keys))
    base = ArrayWeights({"token_embd.weight": RNG.normal(size=(64, 48)).astype(np.float32)})
    weights = MergedWeights(base, read_adapter(tmp_path / "a.gguf"))
    expected = value(base, "token_embd.weight") + 2 * (a @ b.T)
    assert np.allclose(value(weights, "token_embd.weight"), expected, atol=1e-4)


def peft(folder: Path, config: dict[str, object], **arrays: np.ndarray) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 8, "r": 4, **config}))
    safetensors.write(folder / "adapter_model.safetensors", arrays)
    return folder


NAME = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "factor"), [({}, 2.0), ({"use_rslora": True}, 4.0), ({"fan_in_fan_out": True}, 2.0)]
)
def test_folders_of_peft(tmp_path: Path, config: dict[str, object], factor: float) -> None:
    parts = {f"{NAME}.lora_A.weight": A, f"{NAME}.lora_B.weight": B}
    adapter = read_adapter(peft(tmp_path / "lora", config, **parts))
    delta = factor * (B @ A)
    delta = delta.T if config.get("fan_in_fan_out") else delta
    base = RNG.normal(size=delta.shape).astype(np.float32)
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = MergedWeights(ArrayWeights({name: base, "other": base}), {k: [*v, *v] for k, v in adapter.items()})
    assert np.allclose(value(weights, name), base + 2 * delta, atol=1e-4)
    assert np.array_equal(value(weights, "other"), base)


PARTS = {
    "llama": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"),
    "olmo2": ("self_attn.q_proj", "mlp.up_proj"),
    "phi3": ("self_attn.qkv_proj", "mlp.gate_up_proj"),
    "gpt2": ("attn.c_attn", "mlp.c_fc"),
}


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("has_head", [True, False])
def test_folders_of_peft_on_a_gguf_file(tmp_path: Path, family: str, has_head: bool) -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} if family == "gpt2" else SIZES
    old = from_config({"model_type": family, **sizes, "num_key_value_heads": 4 if family == "gpt2" else 2})
    new = from_metadata(metadata(family, old))
    head = "transformer.h" if family == "gpt2" else "model.layers"
    arrays, changed, parts = dict[str, np.ndarray](), dict[str, np.ndarray](), dict[str, np.ndarray]()
    for part in PARTS[family]:
        outputs = 16 if part.endswith(("k_proj", "v_proj")) else 32
        name, a, b = f"{head}.1.{part}", RNG.normal(size=(4, 48)), RNG.normal(size=(outputs, 4))
        stem = name if has_head else name.partition(".")[2]
        parts[f"base_model.model.{stem}.lora_A.weight"] = a.astype(np.float32)
        parts[f"base_model.model.{stem}.lora_B.weight"] = b.astype(np.float32)
        delta = (b @ a).T if family == "gpt2" else b @ a
        arrays[f"{name}.weight"] = RNG.normal(size=delta.shape).astype(np.float32)
        changed[f"{name}.weight"] = arrays[f"{name}.weight"] + 2 * delta
    base = ArrayWeights(stored(arrays, old, new))
    folder = peft(tmp_path / "lora", {"fan_in_fan_out": family == "gpt2"}, **parts)
    weights, _ = merged(base, new, [in_gguf(read_adapter(folder), base, new)])
    expected = stored(changed, old, new)
    assert expected.keys() == {*base.names} and len(expected) == len(PARTS[family])
    for name, array in expected.items():
        assert np.allclose(value(weights, name), array, atol=1e-4) and not np.allclose(array, value(base, name))


def test_what_is_not_merged_is_refused(tmp_path: Path) -> None:
    parts = {f"{NAME}.lora_A.weight": A, f"{NAME}.lora_B.weight": B}
    refused: list[dict[str, object]] = [
        {"use_dora": True},
        {"peft_type": "IA3"},
        {"use_qalora": True},
        {"use_what_comes_next": True},
        {"trainable_token_indices": [1]},
        {"layer_replication": [[0, 1]]},
        {"init_lora_weights": "pissa"},
    ]
    for i, config in enumerate(refused):
        with pytest.raises(ImportModelError, match=next(iter(config))):
            read_adapter(peft(tmp_path / str(i), config, **parts))
    pickled = peft(tmp_path / "pickled", {}, **parts)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(ImportModelError, match="safe_serialization"):
        read_adapter(pickled)
    with pytest.raises(ImportModelError, match="pairs lora_A and lora_B"):
        read_adapter(peft(tmp_path / "more", {}, **parts, **{f"{NAME}.lora_C": A}))
    with pytest.raises(ImportModelError, match=r"a \[rank, inputs\] and b"):
        read_adapter(peft(tmp_path / "half", {}, **{f"{NAME}.lora_A.weight": A}))
    (tmp_path / "model.gguf").write_bytes(of_tensors({"x": ("F32", (4,), np.ones(4, np.float32))}))
    with pytest.raises(ImportModelError, match="a GGUF file of a LoRA adapter"):
        read_adapter(tmp_path / "model.gguf")
    base = ArrayWeights({"blk.0.attn_q.weight": np.zeros((48, 32), np.float32)})
    for name, message in (("blk.0.attn_q.weight", r"\[48, 32\]"), ("blk.1.attn_q.weight", "one for blk.1")):
        with pytest.raises(ImportModelError, match=message):
            MergedWeights(base, {name: [LowRank(A, B, 1.0)]})
    magnitudes = LowRank(A[:, :32], B, 1.0, magnitude=np.ones(48, np.float32))
    with pytest.raises(ImportModelError, match=r"no other adapter .* beside one with magnitudes"):
        MergedWeights(base, {"blk.0.attn_q.weight": [LowRank(A[:, :32], B, 1.0), magnitudes]})


def test_patterns_of_alpha(tmp_path: Path) -> None:
    """The first that fits the end of a module's name, as PEFT reads them; none may take long."""
    parts = {f"{NAME}.lora_A.weight": A, f"{NAME}.lora_B.weight": B}
    table = {"k_proj": 1, "proj": 2, "q_.*|v_proj": 4, "model.layers.0.self_attn.q_proj": 16}
    (change,) = read_adapter(peft(tmp_path / "a", {"alpha_pattern": table}, **parts))[
        "model.layers.0.self_attn.q_proj.weight"
    ]
    assert isinstance(change, LowRank) and change.scale == 1
    for i, bad in enumerate(("(a+)+b", "(q|q)*", "a*b*c*d", "(", "(.)\\1", "(?=q)q", "a{9}{9}{9}")):
        with pytest.raises(ImportModelError, match="alpha_pattern"):
            read_adapter(peft(tmp_path / str(i), {"alpha_pattern": {bad: 1}}, **parts))


PEFT: dict[str, tuple[str, dict[str, object]]] = {
    "patterns": ("llama", {
        "target_modules": r".*\.layers\.\d\.(self_attn\.[qk]|mlp\.down)_proj",
        "rank_pattern": {"layers.1.self_attn.q_proj": 2},
        "alpha_pattern": {r"layers\.\d\.mlp\.down_proj": 3, "q_proj": 1},
    }),
    "stable": ("llama", {"target_modules": ["q_proj", "v_proj"], "use_rslora": True, "bias": "all"}),
    "magnitudes": ("llama", {"target_modules": "all-linear", "use_dora": True, "bias": "lora_only"}),
    "biases": ("llama", {"target_modules": ["k_proj", "gate_proj"], "lora_bias": True}),
    "whole modules": ("gemma3", {"target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head", "embed_tokens"]}),
    "tokens": ("llama", {
        "target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [1, 60, 7], "lm_head": [2]},
    }),
    "tables": ("llama", {"target_modules": ["embed_tokens", "lm_head"]}),
    "tables with magnitudes": ("llama", {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}),
    "transposed": ("gpt2", {"target_modules": ["c_attn", "wte"], "use_dora": True, "fan_in_fan_out": True}),
}  # fmt: skip
BASES: dict[str, tuple[str, str, dict[str, object]]] = {
    "llama": ("llama", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "gemma3": ("gemma3", "Gemma3ForCausalLM", {**HEADS, "tie_word_embeddings": False}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", {
        "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", PEFT)
@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_beside_peft(tmp_path: Path, case: str, form: str) -> None:
    """What PEFT merges, from the folder that it saves."""
    family, options = PEFT[case]
    net = model(*BASES[family])
    library, torch = pytest.importorskip("peft", exc_type=ImportError), pytest.importorskip("torch")
    old, arrays = files(net, tmp_path / "base")
    adapted = library.get_peft_model(net, library.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for p in adapted.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    expected = {k: v.numpy() for k, v in adapted.merge_and_unload().state_dict().items() if k in arrays}
    assert expected.keys() == arrays.keys()
    changes, architecture = read_adapter(tmp_path / "adapter"), old
    assert changes
    base = ArrayWeights(arrays)
    if form == "gguf":
        architecture = from_metadata(metadata(family, old))
        base = ArrayWeights(stored(arrays, old, architecture))
        expected = stored(expected, old, architecture)
        changes = in_gguf(changes, base, architecture)
    weights, _ = merged(base, architecture, [changes])
    count = 0
    for name, array in expected.items():
        merged_value = value(weights, name)
        assert np.allclose(merged_value, array, rtol=1e-5, atol=1e-5), name
        count += not np.array_equal(merged_value, value(base, name))
    assert count >= len(changes) - 1 > 0


@pytest.mark.parametrize("changed", ["embed_tokens", "lm_head"])
def test_a_table_that_is_also_the_output(tmp_path: Path, changed: str) -> None:
    """An adapter of one of them leaves the other: so it was trained."""
    config = {"model_type": "llama", **SIZES, "tie_word_embeddings": True}
    table = RNG.normal(size=(61, 32)).astype(np.float32)
    names = ("model.embed_tokens", "lm_head")
    prefix = f"base_model.model.{names[changed == 'lm_head']}"
    suffixes = ("lora_A.weight", "lora_B.weight") if changed == "lm_head" else ("lora_embedding_A", "lora_embedding_B")
    a, b = (
        RNG.normal(size=shape).astype(np.float32)
        for shape in (((4, 32), (61, 4)) if changed == "lm_head" else ((4, 61), (32, 4)))
    )
    folder = peft(tmp_path / "lora", {}, **{f"{prefix}.{suffixes[0]}": a, f"{prefix}.{suffixes[1]}": b})
    base = ArrayWeights({"model.embed_tokens.weight": table})
    weights, architecture = merged(base, from_config(config), [read_adapter(folder)])
    delta = 2 * (b @ a) if changed == "lm_head" else 2 * (b @ a).T
    assert not architecture.tied
    for name in names:
        expected = table + delta if name.endswith(changed) else table
        assert np.allclose(value(weights, f"{name}.weight"), expected, atol=1e-4)
    assert {*weights.names} == {f"{name}.weight" for name in names}


TOKENS = "model.embed_tokens.token_adapter.trainable_tokens_delta"


@pytest.mark.parametrize(
    ("options", "is_tied"),
    [
        ({"target_modules": ["q_proj"], "trainable_token_indices": [1, 60, 7]}, True),
        ({"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [1, 5], "lm_head": [2]}}, False),
        ({"target_modules": ["lm_head"], "trainable_token_indices": [3]}, False),
        ({"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, True),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "ensure_weight_tying": True}, True),
    ],
)
def test_tied_tables_beside_peft(tmp_path: Path, options: dict[str, object], is_tied: bool) -> None:
    """Logits as PEFT's layers give them: what it merges into a shared tensor is the sum of what both are changed by."""
    net = model("llama", "LlamaForCausalLM", {"tie_word_embeddings": True})
    library, torch = pytest.importorskip("peft", exc_type=ImportError), pytest.importorskip("torch")
    architecture, arrays = files(net, tmp_path / "base")
    adapted = library.get_peft_model(
        net, library.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options)
    ).eval()
    with torch.no_grad():
        for p in adapted.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
        adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
        ids = torch.arange(61)[None]
        expected = adapted(ids).logits[0].numpy()
    weights, architecture = merged(ArrayWeights(arrays), architecture, [read_adapter(tmp_path / "adapter")])
    assert architecture.tied == is_tied
    language, form = Network(architecture, weights, 64), CacheForm.of(architecture, 1, 64)
    caches = [np.zeros(t.shape, np.float32) for layer in form.layers for _, t in layer]
    got = interpret(chunk(language, form, tokens=61, every=True), [ids.numpy(), np.array([0]), *caches])[-1]
    assert np.abs(got[0] - expected).max() < 1e-4 * np.abs(expected).max()


def test_trained_tokens_of_other_tables(tmp_path: Path) -> None:
    rows, base = RNG.normal(size=(2, 32)).astype(np.float32), np.zeros((61, 32), np.float32)
    weights = ArrayWeights({"model.embed_tokens.weight": base})
    refused = {"[1]": "trainable_token", "[1, -2]": "trainable_token", '{"lm_head": [1, 2]}': "a row for each"}
    for i, (indices, message) in enumerate((refused | {"[1, 61]": r"\[61, 32\]"}).items()):
        with pytest.raises(ImportModelError, match=message):
            folder = peft(tmp_path / str(i), {"trainable_token_indices": json.loads(indices)}, **{TOKENS: rows})
            MergedWeights(weights, read_adapter(folder))
    folder = peft(tmp_path / "half", {"trainable_token_indices": [7, 3]}, **{TOKENS: rows})
    got = value(MergedWeights(weights, read_adapter(folder, 0.5)), "model.embed_tokens.weight")
    assert np.array_equal(got[[7, 3]], rows / 2) and np.count_nonzero(got.any(1)) == 2
