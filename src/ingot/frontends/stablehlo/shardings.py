"""Sharding annotations: sdy's (Shardy) and the older mhlo.sharding.

#sdy.sharding<@mesh, [{"dp"}, {}]>                  ->   axes (dp), ()
{devices=[2,1,2]<=[4] last_tile_dim_replicate}      ->   tiles 2 x 1, two copies of each
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.syntax import Attribute, Raw
from ingot.frontends.stablehlo.values import AnyValue, Call
from ingot.ir.node import Node

_DIMENSION = re.compile(r"\{([^{}]*)\}(?:p\d+)?")
_AXIS = re.compile(r'"([^"]+)"(:\(\d+\)\d+)?')
_PER_VALUE = re.compile(r'<@("[^"]*"|[^,>\s]+)\s*,\s*\[([^\]]*)\]')
_SIZE = re.compile(r'"([^"]+)"=(\d+)')
_TILES = re.compile(r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")
_MAX_DEVICES = 1 << 16


def annotated(x: AnyValue, attributes: Mapping[str, Attribute]) -> AnyValue:
    """x with its sharding; complex numbers and levels are unchanged."""
    op = sharding(attributes, len(x.shape)) if isinstance(x, Node) else None
    return x if op is None or not isinstance(x, Node) else op(x, loc=x.loc)


def sharding(attributes: Mapping[str, Attribute], rank: int) -> ops.Sharding | None:
    """The op for a sharding of a value of this rank; None if there is none, or if it is replicated. Raises Unsupported
    for parts of axes and devices without an order."""
    for name in ("sharding", "sdy.sharding", "mhlo.sharding"):
        value = attributes.get(name)
        text = value.text if isinstance(value, Raw) else value
        if isinstance(text, str):
            return _sdy(text, rank) if "@" in text or "mesh" in text else _tiled(text, rank)
    return None


def manual_shardings(c: Call, key: str) -> tuple[tuple[tuple[str, int], ...], tuple[ops.Axes, ...]]:
    """The mesh of a manual computation, and for each operand or result the axes that split its dimensions."""
    text = getattr(c.attributes.get(key), "text", "")
    matches = _PER_VALUE.findall(text)
    meshes = {c.importer.module.meshes.get(name.strip('"'), "") for name, _ in matches}
    axes = [_SIZE.findall(mesh) for mesh in meshes]
    if len(meshes) > 1 or not all(axes) or any("device_ids" in mesh for mesh in meshes):
        raise Unsupported(f"{key} = {text[:100]}: one mesh of the module, with devices in order")
    mesh = tuple((name, int(size)) for name, size in axes[0]) if axes else ()
    return mesh, tuple(_axes(dimensions) for _, dimensions in matches)


def _axes(text: str) -> ops.Axes:
    """{"dp", "tp"}, {}   ->   (dp, tp), ()"""
    axes: list[tuple[str, ...]] = []
    for dimension in _DIMENSION.findall(text):
        names = _AXIS.findall(dimension)
        if any(part for _, part in names):
            raise Unsupported(f"a part of a mesh axis: {dimension}")
        axes.append(tuple(name for name, _ in names))
    return tuple(axes)


def _sdy(text: str, rank: int) -> ops.Sharding | None:
    start = text.find("[{")
    if rank == 0 or start < 0:
        return None
    axes = _axes(text[start : text.find("]", start)])
    if len(axes) != rank:
        raise Unsupported(f"a sharding of {len(axes)} dimensions for a value of {rank}")
    return ops.Sharding(axes) if any(axes) else None


def _tiled(text: str, rank: int) -> ops.Sharding | None:
    match_ = _TILES.match(text)
    if match_ is None or rank == 0:
        return None  # replicated, maximal, manual: not split
    tiles = tuple(map(int, match_[1].split(",")))
    count = 1
    for tile in tiles:
        count *= tile
    if not 0 < count <= _MAX_DEVICES or len(tiles) not in (rank, rank + 1):
        raise Unsupported(f"a sharding {text[:60]} of a value of {rank} dimensions")
    if match_[4]:
        ranks = np.array([int(n) for n in match_[4].split(",")])
    else:
        ranks = np.arange(count)
        grid = tuple(map(int, match_[2].split(",")))
        order = tuple(map(int, match_[3].split(","))) if match_[3] else tuple(range(len(grid)))
        if int(np.prod(grid)) != count or sorted(order) != list(range(len(grid))):
            raise Unsupported(f"a sharding {text[:60]}")
        ranks = ranks.reshape(grid).transpose(order).reshape(-1)
    if sorted(ranks.tolist()) != list(range(count)):
        raise Unsupported(f"a sharding {text[:60]}")
    return ops.Sharding((), tiles, tuple(ranks.tolist())) if any(t > 1 for t in tiles[:rank]) else None
