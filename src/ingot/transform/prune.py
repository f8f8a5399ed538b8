"""`ingot.prune`: set the smallest weights of a model's products to zero, and compile the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ingot.driver.open import Request, open_model
from ingot.ir.node import Graph, Node, const, rebuild
from ingot.pipeline.build import build_native
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.errors import InputError
from ingot.transform.quantize.sites import Site, find_groups, prepare

if TYPE_CHECKING:
    from ingot.driver.open import Opened

Scope = Literal["layer", "global"]
BLOCK_SIZES = (1, 4, 16)  # with sparse kernels


class PrunedModel(CompiledModel):
    """A compiled model, with the calling convention that `ingot.compile` gives the model; `ingot.quantize` takes it,
    too.

    sparsity: the fraction of zeros in each product's weights, by the product's name. opened: the pruned model as a
    graph.
    """

    def __init__(self, opened: Opened, sparsity: Mapping[str, float], threads: int) -> None:
        self.opened, self.sparsity = opened, dict(sparsity)
        program = build_native(opened.graph, threads).with_state(opened.state)
        super().__init__(program, threads=threads, convention=opened.convention)

    def __repr__(self) -> str:
        zeros = float(np.mean(list(self.sparsity.values())))
        return f"PrunedModel({len(self.sparsity)} products, {zeros:.0%} zeros on average)"


def prune_model(
    model: Any, sparsity: float | Mapping[str, float], block: int, scope: Scope, example_inputs: Any, dynamic: Any,
    threads: int | None,
) -> PrunedModel:  # fmt: skip
    """See `ingot.prune`."""
    if block not in BLOCK_SIZES:
        raise InputError("block", expected=f"one of {', '.join(map(str, BLOCK_SIZES))} neighboring outputs", got=block)
    if scope not in ("layer", "global"):
        raise InputError("scope", expected="layer or global", got=scope)
    opened = open_model(model, Request(example_inputs, dynamic))
    graph = prepare(opened.graph)
    sites = [site for group in find_groups(graph) for site in group.sites]
    if not sites:
        raise InputError("the model", expected="products with constant weights of float32", got="none")
    targets = _target_sparsities(sites, sparsity)
    pruned_weights: dict[Node, np.ndarray] = {}
    for i, (site, mask) in enumerate(zip(targets, _block_masks(targets, block, scope), strict=True)):
        progress.report("prune", i, len(targets))
        pruned_weights[site.node] = _prune_weights(site, mask, block)

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        return (
            n.op(inputs[0], const(pruned_weights[n], loc=n.inputs[1].loc), loc=n.loc)
            if n in pruned_weights
            else n.with_inputs(inputs)
        )

    actual_sparsity = {s.name: 1 - np.count_nonzero(pruned_weights.get(s.node, s.weight())) / s.weights for s in sites}
    pruned: Graph = graph.with_outputs(rebuild(graph.outputs, rule=image))
    return PrunedModel(replace(opened, graph=pruned, is_onnx=False), actual_sparsity, thread_count(threads))


def _target_sparsities(sites: Sequence[Site], sparsity: float | Mapping[str, float]) -> dict[Site, float]:
    """The target sparsity of each product to prune."""
    patterns = sparsity if isinstance(sparsity, Mapping) else {"*": sparsity}
    for value in patterns.values():
        if not (isinstance(value, float | int) and 0 <= value < 1):
            raise InputError("sparsity", expected="a fraction of the weights, from 0 to less than 1", got=value)
    targets: dict[Site, float] = {}
    for pattern, value in patterns.items():
        matches = [s for s in sites if fnmatchcase(s.name, pattern)]
        if not matches:
            names = ", ".join(s.name for s in sites[:8])
            raise InputError("sparsity", expected=f"names of products, such as {names}", got=pattern)
        targets |= dict.fromkeys(matches, float(value))
    return targets


def _block_masks(targets: Mapping[Site, float], block: int, scope: Scope) -> list[np.ndarray]:
    """A mask of blocks [block of outputs, inputs] to keep, for each product: those of the largest mean magnitude."""
    magnitudes = [_magnitudes(s, block) for s in targets]
    if scope == "layer":
        return [_largest_mask(magnitude, zeros) for magnitude, zeros in zip(magnitudes, targets.values(), strict=True)]
    if len(set(targets.values())) != 1:
        raise InputError("sparsity", expected="one number with scope='global'", got=sorted(set(targets.values())))
    mask = _largest_mask(
        np.concatenate([magnitude.reshape(-1) for magnitude in magnitudes]), next(iter(targets.values()))
    )
    ends = np.cumsum([magnitude.size for magnitude in magnitudes])[:-1]
    return [part.reshape(magnitude.shape) for part, magnitude in zip(np.split(mask, ends), magnitudes, strict=True)]


def _magnitudes(site: Site, block: int) -> np.ndarray:
    w = np.abs(site.by_channel(site.weight()))
    groups = -(-len(w) // block)
    padded = np.zeros((groups * block, w.shape[1]), np.float32)
    padded[: len(w)] = w
    counts = np.minimum(len(w) - np.arange(groups) * block, block)  # the last block may hold fewer outputs
    return np.asarray(padded.reshape(groups, block, -1).sum(1) / counts[:, None])


def _largest_mask(magnitudes: np.ndarray, zeros: float) -> np.ndarray:
    count = round(zeros * magnitudes.size)
    mask = np.ones(magnitudes.size, bool)
    mask[np.argsort(magnitudes, axis=None, kind="stable")[:count]] = False
    return mask.reshape(magnitudes.shape)


def _prune_weights(site: Site, blocks: np.ndarray, block: int) -> np.ndarray:
    w = site.weight()
    mask = np.repeat(blocks, block, 0)[: site.channels]
    shape = np.moveaxis(w, site.axes.out, 0).shape
    return np.where(np.moveaxis(mask.reshape(shape), 0, site.axes.out), w, np.float32(0))


__all__ = ["PrunedModel", "prune_model"]
