"""`ingot.prune`: the smallest weights of a model's products as zeros, and the model compiled with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ingot.driver.open import Request, open_model
from ingot.ir.node import Graph, Node, const, rebuilt
from ingot.pipeline.build import build_native
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError
from ingot.transform.quantize.sites import Site, find_groups, prepared

if TYPE_CHECKING:
    from ingot.driver.open import Opened

Scope = Literal["layer", "global"]
HEIGHTS = (1, 4, 16)  # of blocks that there are kernels for


class PrunedModel(CompiledModel):
    """A compiled model, called as what `ingot.compile` returns for the model; `ingot.quantize` takes it, too.

    sparsity: of each product's weights, by its name, the part that are zeros. opened: the pruned model as a graph.
    """

    def __init__(self, read: Opened, sparsity: Mapping[str, float], threads: int) -> None:
        self.opened, self.sparsity = read, dict(sparsity)
        program = build_native(read.graph, threads).with_state(read.state)
        super().__init__(program, threads=threads, convention=read.convention)

    def __repr__(self) -> str:
        zeros = float(np.mean(list(self.sparsity.values())))
        return f"PrunedModel({len(self.sparsity)} products, {zeros:.0%} zeros in the mean)"


def prune_model(
    model: Any, sparsity: float | Mapping[str, float], block: int, scope: Scope, example_inputs: Any, dynamic: Any,
    threads: int | None,
) -> PrunedModel:  # fmt: skip
    """See `ingot.prune`."""
    if block not in HEIGHTS:
        raise InputError("block", expected=f"one of {', '.join(map(str, HEIGHTS))} neighbouring outputs", got=block)
    if scope not in ("layer", "global"):
        raise InputError("scope", expected="layer or global", got=scope)
    read = open_model(model, Request(example_inputs, dynamic))
    graph = prepared(read.graph)
    sites = [site for group in find_groups(graph) for site in group.sites]
    if not sites:
        raise InputError("the model", expected="products with constant weights of float32", got="none")
    parts = _parts(sites, sparsity)
    new = {s.node: _pruned(s, kept, block) for s, kept in zip(parts, _kept(parts, block, scope), strict=True)}

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        return n.op(inputs[0], const(new[n], loc=n.inputs[1].loc), loc=n.loc) if n in new else n.with_inputs(inputs)

    told = {s.name: 1 - np.count_nonzero(new.get(s.node, s.weight())) / s.weights for s in sites}
    changed: Graph = graph.with_outputs(rebuilt(graph.outputs, rule=image))
    return PrunedModel(replace(read, graph=changed, is_onnx=False), told, thread_count(threads))


def _parts(sites: Sequence[Site], sparsity: float | Mapping[str, float]) -> dict[Site, float]:
    """The products that are pruned, and how far."""
    asked = sparsity if isinstance(sparsity, Mapping) else {"*": sparsity}
    for value in asked.values():
        if not (isinstance(value, float | int) and 0 <= value < 1):
            raise InputError("sparsity", expected="parts of the weights, from 0 to less than 1", got=value)
    found: dict[Site, float] = {}
    for pattern, value in asked.items():
        of = [s for s in sites if fnmatchcase(s.name, pattern)]
        if not of:
            names = ", ".join(s.name for s in sites[:8])
            raise InputError("sparsity", expected=f"names of products, such as {names}", got=pattern)
        found |= dict.fromkeys(of, float(value))
    return found


def _kept(parts: Mapping[Site, float], block: int, scope: Scope) -> list[np.ndarray]:
    """For each product the blocks [groups, places] that stay: those whose weights have the largest mean magnitude."""
    sizes = [_magnitudes(s, block) for s in parts]
    if scope == "layer":
        return [_largest(size, part) for size, part in zip(sizes, parts.values(), strict=True)]
    if len(set(parts.values())) != 1:
        raise InputError("sparsity", expected="one number, where scope is global", got=sorted(set(parts.values())))
    whole = _largest(np.concatenate([size.reshape(-1) for size in sizes]), next(iter(parts.values())))
    ends = np.cumsum([size.size for size in sizes])[:-1]
    return [own.reshape(size.shape) for own, size in zip(np.split(whole, ends), sizes, strict=True)]


def _magnitudes(site: Site, block: int) -> np.ndarray:
    w = np.abs(site.by_channel(site.weight()))
    groups = -(-len(w) // block)
    whole = np.zeros((groups * block, w.shape[1]), np.float32)
    whole[: len(w)] = w
    counts = np.minimum(len(w) - np.arange(groups) * block, block)  # the last block may hold fewer outputs
    return np.asarray(whole.reshape(groups, block, -1).sum(1) / counts[:, None])


def _largest(sizes: np.ndarray, zeros: float) -> np.ndarray:
    count = round(zeros * sizes.size)
    kept = np.ones(sizes.size, bool)
    kept[np.argsort(sizes, axis=None, kind="stable")[:count]] = False
    return kept.reshape(sizes.shape)


def _pruned(site: Site, kept: np.ndarray, block: int) -> np.ndarray:
    w = site.weight()
    mask = np.repeat(kept, block, 0)[: site.channels]
    shape = np.moveaxis(w, site.axes.out, 0).shape
    return np.where(np.moveaxis(mask.reshape(shape), 0, site.axes.out), w, np.float32(0))


__all__ = ["PrunedModel", "prune_model"]
