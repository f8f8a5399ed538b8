"""Files of low-rank adapters: llama.cpp's GGUF files, and PEFT folders with safetensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.frontends.gguf import GGUFFile
from ingot.frontends.huggingface.folder import read_json
from ingot.language.architecture import Architecture
from ingot.language.lora import Adapter, Added, Change, LowRank, Trained, TrainedRows
from ingot.language.metadata import PAIRED, SHIFTED_NORMS
from ingot.language.names import GGUF, TABLES, roles_of
from ingot.language.settings import Settings
from ingot.language.weights import Weights
from ingot.support import safetensors
from ingot.support.errors import ImportModelError

_MAX_CONFIG_BYTES = 4 << 20
_PREFIX = "base_model.model."  # of PEFT's names
# PEFT options that change weights in other ways -> the value that disables them; any other `use_...`, too
_OFF_VALUES: dict[str, Any] = {
    "layer_replication": None, "target_parameters": None, "kasa_config": None, "alora_invocation_tokens": None,
    "arrow_config": None, "monteclora_config": None, "velora_config": None,
}  # fmt: skip
_MERGED_USES = ("use_dora", "use_rslora")
# what PEFT begins with and leaves the model's own weights as they are
_INITIALIZATIONS = (None, True, False, "gaussian", "eva", "orthogonal")
_PARTS = {  # the end of a name -> the part of a change
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "embedding_a",
    ".lora_embedding_B": "embedding_b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_B.bias": "added",
}
_TOKENS = ".token_adapter.trainable_tokens_delta"  # the end of a name: new rows, in spite of it
_GGUF_TABLE = dict(GGUF)["embedding"]
_MAX_MATCHES = 1 << 21  # of patterns with modules
_MAX_NAME_LENGTH = 1 << 10
# a pattern of PEFT that takes no more than the square of a name's length: two repetitions at most, none of a group
_REPETITION = re.compile(r"(?<!\\)[*+{]")
_GROUP_REPETITION = re.compile(r"(?<!\\)\)\s*[*+{]|\(\?(?!:)|\\\d")


def read_adapter(path: Path, scale: float = 1.0) -> Adapter:
    """By names of tensors, as the model's own file has them. scale: of what the adapter changes. Raises
    ImportModelError."""
    return _of_folder(path, scale) if path.is_dir() else _of_gguf(path, scale)


def in_gguf(adapter: Adapter, weights: Weights, architecture: Architecture) -> Adapter:
    """Convert an adapter with names of `transformers` to one of a GGUF file, whose converter renames and reorders
    matrices. Matrices without a GGUF name are kept as they are."""
    names = dict(architecture.names)
    heads = {"query": architecture.heads, "key": architecture.key_heads}
    layers = range(len(architecture.layers))
    roles = {role for role, name in names.items() if any(name.format(i, 0) in weights for i in layers)}

    def image(name: str, parts: Sequence[Change]) -> tuple[str, Sequence[Change]]:
        weight, _, ending = name.rpartition(".")
        for role, place in roles_of(f"{weight}.weight", roles):
            gguf_name = names.get(role, "").format(*place).removesuffix("weight") + ending
            if gguf_name not in weights and (role != "output" or ending != "weight"):
                continue
            is_paired = architecture.family in PAIRED and role in heads
            return gguf_name, [_converted(part, role, name, heads[role] if is_paired else 0) for part in parts]
        return name, parts

    def _converted(part: Change, role: str, name: str, paired_heads: int) -> Change:
        if isinstance(part, LowRank) and role not in TABLES:
            part = replace(part, transposed=False)
        elif isinstance(part, Trained) and architecture.family in SHIFTED_NORMS and "norm" in role:
            part = replace(part, value=part.value.astype(np.float32) + 1)
        elif (
            isinstance(part, Trained) and architecture.family == "gpt2" and len(part.shape) == 2 and role not in TABLES
        ):
            fix = "merge it into the folder that the file was converted from"
            raise ImportModelError("the adapter", expected="no transposed matrix", got=name, fix=fix)
        return part.reordered(paired_heads) if paired_heads and part.shape[0] % (2 * paired_heads) == 0 else part

    return dict(image(name, parts) for name, parts in adapter.items())


def _of_gguf(path: Path, scale: float) -> Adapter:
    file = GGUFFile(path)
    s = Settings(file.metadata, str(path))
    kind = s.text("adapter.type", default="none")
    if s.text("general.type", default="model") != "adapter" or kind != "lora":
        raise ImportModelError("the adapter", expected="a GGUF file of a LoRA adapter", got=kind, where=str(path))
    alpha = s.number("adapter.lora.alpha")
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in file.tensors.items():
        weight, _, part = name.rpartition(".")
        if part not in ("lora_a", "lora_b"):
            raise ImportModelError("the adapter", expected="pairs lora_a and lora_b", got=name, where=str(path))
        array = tensor.dequantized()
        if weight == _GGUF_TABLE:  # its rows are looked up: a is stored transposed
            part, array = f"embedding_{part[-1]}", array.T if part == "lora_a" else array
        groups.setdefault(weight, {})[part.removeprefix("lora_")] = array
    return {
        weight: [_low_rank(group, weight, path, lambda rank: scale * (alpha / rank if alpha else 1.0))]
        for weight, group in groups.items()
    }


def _of_folder(path: Path, scale: float) -> Adapter:
    config = read_json(path / "adapter_config.json", _MAX_CONFIG_BYTES)
    s = Settings(config, str(path / "adapter_config.json"))
    if s.text("peft_type", default="none") != "LORA":
        raise s.error("peft_type", "'LORA'", s.get("peft_type"))
    uses = {key: False for key in config if key.startswith("use_") and key not in _MERGED_USES}
    for key, off_value in (_OFF_VALUES | uses).items():
        if s.get(key) not in (None, off_value, [], {}):
            raise s.error(key, repr(off_value), s.get(key))
    if s.get("init_lora_weights") not in _INITIALIZATIONS:
        fix = "save it with path_initial_model_for_weight_conversion, as PEFT calls it"
        expected = "an adapter of the model's own weights"
        raise s.error("init_lora_weights", f"{expected}; {fix}", s.get("init_lora_weights"))
    alpha, is_stable, transposed = s.number("lora_alpha"), s.flag("use_rslora"), s.flag("fan_in_fan_out")
    alphas = _patterns(s, "alpha_pattern")
    file = path / "adapter_model.safetensors"
    if not file.exists() and (path / "adapter_model.bin").exists():
        fix = "save it with safe_serialization=True: files of pickle run code when they are read"
        raise ImportModelError("the adapter", expected=file.name, got="adapter_model.bin", where=str(path), fix=fix)
    groups: dict[str, dict[str, np.ndarray]] = {}
    tensors: dict[str, np.ndarray] = {}
    changes: dict[str, list[Change]] = {}
    arrays = safetensors.read(file)
    names = [*arrays]
    for name, array in arrays.items():
        own_name = name.removeprefix(_PREFIX)
        ending = next((ending for ending in _PARTS if own_name.endswith(ending)), None)
        if own_name.endswith(_TOKENS):
            module = own_name.removesuffix(_TOKENS)
            changes[f"{module}.weight"] = [TrainedRows(array, scale, _token_indices(s, module, array))]
        elif ending is not None:
            groups.setdefault(own_name.removesuffix(ending), {})[_PARTS[ending]] = array.astype(np.float32)
        elif ".lora_" in own_name:
            raise ImportModelError("the adapter", expected="pairs lora_A and lora_B", got=name, where=str(path))
        else:
            tensors[own_name.replace(".base_layer.", ".").replace(".modules_to_save.", ".")] = array
    if len(alphas) * len(groups) > _MAX_MATCHES or max(map(len, groups), default=0) > _MAX_NAME_LENGTH:
        expected = f"at most {_MAX_MATCHES} matches with names of {_MAX_NAME_LENGTH} characters"
        raise s.error("alpha_pattern", expected, f"{len(alphas)} patterns, {len(groups)} modules")
    for name, array in tensors.items():
        changes.setdefault(name, []).insert(0, Trained(array, scale))
    if s.get("trainable_token_indices") and not any(name.endswith(_TOKENS) for name in names):
        raise s.error("trainable_token_indices", f"a tensor {_TOKENS.removeprefix('.')}", "none")
    for module, group in groups.items():
        module_alpha = next((value for pattern, value in alphas if pattern.match(module)), alpha)

        def factor(rank: int, alpha: float = module_alpha) -> float:
            return scale * alpha / (rank**0.5 if is_stable else rank)

        part = _low_rank(group, f"{module}.weight", path, factor, transposed)
        if s.flag("use_dora") != (part.magnitude is not None):
            raise s.error("use_dora", f"true and a magnitude of {module}, or false and none", s.get("use_dora"))
        changes.setdefault(f"{module}.weight", []).append(part)
        if (bias := group.get("added")) is not None:
            changes.setdefault(f"{module}.bias", []).append(Added(bias, part.scale))
    return changes


def _token_indices(s: Settings, module: str, rows: np.ndarray) -> np.ndarray:
    """The rows of a table that were trained: those of the whole adapter, or of the modules by the ends of their
    names."""
    key = "trainable_token_indices"
    given = s.get(key)
    if isinstance(given, Mapping):
        given = next((v for name, v in given.items() if module == name or module.endswith(f".{name}")), None)
    indices: list[Any] = given if isinstance(given, list) else []
    is_known = all(type(i) is int and 0 <= i < 1 << 31 for i in indices)
    if not is_known or rows.ndim != 2 or len(indices) != len(rows):
        raise s.error(key, f"a row for each of {list(rows.shape)} of {module}", s.get(key))
    return np.array(indices, np.int64)


def _patterns(s: Settings, key: str) -> list[tuple[re.Pattern[str], float]]:
    """The entries of a table by patterns of modules' names, in order."""
    inner = s.inner(key)
    if inner is None:
        return []
    patterns: list[tuple[re.Pattern[str], float]] = []
    for text in inner.names:
        if len(_REPETITION.findall(text)) > 2 or _GROUP_REPETITION.search(text):
            raise inner.error(text[:80], "a pattern without repeated groups, with two repetitions at most", text)
        try:
            patterns.append((re.compile(rf"(?:.*\.)?(?:{text})$"), inner.number(text)))
        except (re.error, RecursionError, OverflowError) as error:
            raise inner.error(text[:80], "a regular expression", str(error)) from error
    return patterns


def _low_rank(
    group: Mapping[str, np.ndarray], weight: str, path: Path, scale: Callable[[int], float], transposed: bool = False
) -> LowRank:
    is_table = "embedding_a" in group
    a, b = (group.get(f"embedding_{part}" if is_table else part) for part in "ab")
    magnitude = group.get("magnitude")
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or not a.shape[0] or a.shape[0] != b.shape[1]:
        expected = "a [rank, inputs] and b [outputs, rank]"
    elif magnitude is not None and magnitude.size != b.shape[0]:
        expected = f"a magnitude of each of {b.shape[0]} outputs"
    else:
        magnitude = None if magnitude is None else magnitude.reshape(-1)
        return LowRank(a, b, scale(a.shape[0]), transposed or is_table, magnitude)
    got = {key: list(array.shape) for key, array in group.items()}
    raise ImportModelError(f"the adapter of {weight}", expected=expected, got=got, where=str(path))
