"""A PyTorch model imported once more, with sizes of 0.

net on example x[4, 8], dynamic {"x": {0: "batch"}};  batch = 0   ->   net on example x[0, 8], where axis 0 is fixed

torch.export takes the sizes that it leaves open for 2 at least: where the model's code and torch's own ask whether they
are 0, it says no. So a module is traced again, on nothing. An exported program was traced already, and is what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ingot.frontends.torch.export import Dynamic, export_module
from ingot.frontends.torch.file import load_exported, sized
from ingot.frontends.torch.model import FIXED, SIZE, ImportedModel
from ingot.frontends.torch.program import import_exported
from ingot.ir.dims import substitute, symbols_of
from ingot.ir.interp import bind_symbols
from ingot.ir.node import Graph
from ingot.support.errors import InputError

_Version = tuple[int, int]


class ZeroImport:
    """From names of sizes to the model in which they are 0; to None where bounds that were asked for rule that out."""

    def __init__(self, model: object, imported: ImportedModel, example_inputs: Any, dynamic: Dynamic) -> None:
        """model: a module, an exported program or a file of one, as it was imported."""
        self._model, self._example, self._dynamic = model, example_inputs, dynamic
        self._graph, self._inputs = Graph(imported.graph.inputs, ()), imported.inputs
        self._state = frozenset(imported.state)
        self._versions = self._weights()

    def __call__(self, names: Collection[str]) -> ImportedModel | None:
        """Raises InputError where the model's weights were changed meanwhile, and what importing raises."""
        if not isinstance(self._model, Path | ExportedProgram | nn.Module) or not _bounded(self._dynamic, names):
            return None
        if isinstance(self._model, Path):
            imported = import_exported(load_exported(self._model), zeros=names)
            dims = self._dynamic if isinstance(self._dynamic, Mapping) else {}
            return replace(imported, graph=sized(imported.graph, {k: v for k, v in dims.items() if k not in names}))
        if isinstance(self._model, ExportedProgram):
            return import_exported(self._model, zeros=names)
        if self._weights() != self._versions:
            fix = "compile it again, or leave out calls on nothing, which take a program of their own"
            raise InputError("the module's weights", expected="those that it was compiled with", got="others", fix=fix)
        args, kwargs = self._on_nothing(names)
        return import_exported(export_module(self._model, args or kwargs, self._dynamic, keep_zeros=True))

    def _weights(self) -> Sequence[_Version]:
        """Which tensors the module's are, but for its state, and how often they were written."""
        if not isinstance(self._model, nn.Module):
            return []
        named = [*self._model.named_parameters(), *self._model.named_buffers()]
        return [(id(t), 0 if t.is_inference() else t._version) for name, t in named if name not in self._state]

    def _on_nothing(self, names: Collection[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example's arguments, cut to where these sizes are 0."""
        args, kwargs = ((), self._example) if isinstance(self._example, Mapping) else (self._example, {})
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
        flat = self._inputs.leaves_of(args, dict(kwargs))
        told = self._inputs.flatten(args, kwargs)
        count = len(told)
        inputs = self._graph.inputs
        own = Graph(inputs[:count], ())
        values = bind_symbols(own, [tuple(t.shape) for t in told]) | dict.fromkeys(names, 0)
        shapes = iter(inputs[:count])
        leaves: list[Any] = []
        for leaf, value in zip(self._inputs.leaves, flat, strict=True):
            if leaf.kind == FIXED:
                leaves.append(value)
                continue
            kind = next(shapes).type
            touched = {a: d for a, d in enumerate(kind.shape) if not symbols_of(d).isdisjoint(names)}
            if leaf.kind == SIZE:
                leaves.append(substitute(kind.shape[0], values) if touched else value)
                continue
            for axis, size in touched.items():
                value = _of_size(value, axis, int(substitute(size, values)))
            leaves.append(value)
        return pytree.tree_unflatten(leaves, self._inputs.spec)


def _of_size(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """With another size along an axis, of any values."""
    return tensor.new_zeros([*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]])


def _bounded(dynamic: Any, names: Collection[str]) -> bool:
    """Whether `dynamic` leaves it open that these sizes are 0: (name, lowest, highest) and name: (lowest, highest)
    do not."""
    match dynamic:
        case (str(name), int(low), _):
            return low == 0 or name not in names
        case Mapping():
            own = (k for k, v in dynamic.items() if isinstance(v, tuple) and len(v) == 2 and isinstance(v[0], int))
            return not set(names).intersection(own) and all(_bounded(v, names) for v in dynamic.values())
        case list() | tuple():
            return all(_bounded(v, names) for v in dynamic)
        case _:
            return True
