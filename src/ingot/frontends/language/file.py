"""The file of a language model: a GGUF file or a folder of Hugging Face.

open_language(Path("model.gguf"), "gguf")  ->  LanguageFile: architecture, weights, text
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ingot.frontends.gguf import GGUFFile, GGUFWeights
from ingot.frontends.huggingface import Folder, FolderWeights
from ingot.frontends.language.adapters import in_gguf, read_adapter
from ingot.frontends.language.text import json_of, text_of_folder, text_of_metadata
from ingot.ir.node import Graph
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8
from ingot.language.architecture import Architecture
from ingot.language.cache import CacheForm
from ingot.language.config import from_config
from ingot.language.engine.paging import FEW_ROWS, Steps
from ingot.language.engine.program import MAX_PAGED_SAMPLES, paged_step, pool, step
from ingot.language.generate import generate
from ingot.language.layers import Network
from ingot.language.lora import merged
from ingot.language.metadata import from_metadata
from ingot.language.programs import POOLINGS, chunk, embed, score
from ingot.language.settings import Settings
from ingot.language.weights import Weights
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Kind = Literal["gguf", "huggingface"]
CONTEXT = 4096  # tokens by default, or fewer if the model's limit is lower
CACHES: Mapping[str, DType] = {
    "float32": f32, "float16": f16, "bfloat16": bf16, "int8": i8, "float8_e4m3fn": f8e4m3fn, "float8_e5m2": f8e5m2,
}  # fmt: skip
_TOKENS_PER_CALL, _TOKENS_PER_GPU_CALL = 16, 64  # at most: a call has a price of its own, on GPUs that of two tokens


@dataclass(frozen=True)
class LanguageFile:
    """text: see `frontends.language.text`. pooling: of a sequence's embedding, as the file says."""

    path: Path
    architecture: Architecture
    weights: Weights
    text: Mapping[str, Any]
    pooling: str

    def network(self, context: int | None, *, launches_cost: bool = False) -> Network:
        """context: the most tokens of a sequence; None: a usual number. launches_cost: see `Network`."""
        if context is None:
            context = min(CONTEXT, self.architecture.context)
        if isinstance(context, bool) or not isinstance(context, int) or context < 1:
            raise InputError("context", expected="a number of tokens", got=repr(context))
        return Network(self.architecture, self.weights, context, launches_cost=launches_cost)


def open_language(
    path: Path, kind: Kind, *, with_text: bool = True, adapters: Sequence[tuple[Path, float]] = ()
) -> LanguageFile:
    """adapters: of low rank, each with its scale. Raises ImportModelError for a file that is malformed, or of a model
    that is not supported."""
    if kind == "gguf":
        file = GGUFFile(path)
        architecture = from_metadata(file.metadata)
        text = text_of_metadata(file.metadata) if with_text else {}
        pooling = _pooling_of_metadata(file.metadata, architecture)
        weights = GGUFWeights(file)
        changes = [in_gguf(read_adapter(*adapter), weights, architecture) for adapter in adapters]
        weights, architecture = merged(weights, architecture, changes)
        return LanguageFile(path, architecture, weights, text, pooling)
    folder = Folder(path)
    architecture = from_config(folder.config)
    text = text_of_folder(folder) if with_text else {}
    changes = [read_adapter(*adapter) for adapter in adapters]
    weights, architecture = merged(FolderWeights(folder), architecture, changes)
    return LanguageFile(path, architecture, weights, text, _pooling_of_folder(path))


def chunk_graph(path: Path, kind: Kind) -> Graph:
    """The graph that `ingot.compile` compiles for a language model: from a chunk of a sequence to logits, or for an
    encoder to embeddings."""
    file = open_language(path, kind, with_text=False)
    network = file.network(None)
    if not file.architecture.causal:
        return embed(network, 1, file.pooling)
    return chunk(network, CacheForm.of(file.architecture, 1, network.context))


def language_graph(
    path: Path,
    kind: Kind,
    what: str | Steps,
    context: int | None,
    cache: str,
    adapters: Sequence[tuple[Path, float]] = (),
    *,
    has_paged_attention: bool = False,
) -> tuple[Graph, Mapping[str, Any]]:
    """(the graph of "generate", "embed", "score" or steps, the metadata of its program); an encoder has only
    "embed". has_paged_attention: of the target, see `pipeline.target.Target`."""
    if cache not in CACHES:
        raise InputError("cache", expected=f"one of {', '.join(CACHES)}", got=repr(cache))
    file = open_language(path, kind, adapters=adapters)
    network = file.network(context, launches_cost=has_paged_attention)
    what = what if file.architecture.causal else "embed"
    # convolutions store only their last tokens, so a sequence cannot be rewound
    rewinds = not any(layer.convolution for layer in file.architecture.layers)
    facts = {"name": path.stem, "context": network.context, "rewinds": rewinds, **file.text}
    facts["vocabulary"] = network.vocabulary
    if isinstance(what, Steps):
        form = pool(what, file.architecture, network.context, CACHES[cache])
        pool_facts = {"kind": "steps", "cache_bytes": form.nbytes, "pages": form.pages, "sequences": what.sequences}
        if has_paged_attention and rewinds:
            samples = min(max(what.sequences, FEW_ROWS), MAX_PAGED_SAMPLES)
            return paged_step(network, form, samples), {**pool_facts, **facts}
        return step(network, form), {**pool_facts, **facts}
    form = CacheForm.of(file.architecture, 1, network.context, CACHES[cache])
    match what:
        case "embed":
            graph = embed(network, 1, file.pooling)
        case "score":
            graph = score(network, form)
        case _:
            max_tokens = _TOKENS_PER_GPU_CALL if has_paged_attention else _TOKENS_PER_CALL
            graph = generate(network, form, max_tokens, has_lengths=has_paged_attention)
    return graph, {"kind": what, **facts}


def _pooling_of_metadata(metadata: Mapping[str, Any], architecture: Architecture) -> str:
    s = Settings(metadata, "GGUF metadata", f"{architecture.family}.")
    kinds = {0: "mean", 1: "mean", 2: "first", 3: "last"}
    kind = s.count("pooling_type", default=1, least=0)
    if kind not in kinds:
        raise s.error("pooling_type", f"one of {', '.join(map(str, kinds))}", kind)
    return kinds[kind]


def _pooling_of_folder(path: Path) -> str:
    config = json_of(path / "1_Pooling" / "config.json")
    names = {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
    requested = [pooling for pooling in POOLINGS if config.get(names[pooling]) is True]
    return requested[0] if len(requested) == 1 else "mean"
