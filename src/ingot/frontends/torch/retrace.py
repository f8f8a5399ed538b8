"""A PyTorch model imported again, for sizes for which its program is not valid.

net on example x[8, 4], dynamic {"x": {0: "n"}};  a call with n = 2   ->   net on example x[2, 4]

While tracing, questions about sizes are answered by the example's sizes, and open sizes are taken to be at least 2; the
program is valid where the answers are the same. So a module is traced again on an example with the call's sizes, with
sizes of 0 and 1 fixed. An exported program was traced already: it can only be imported again for sizes of 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ingot.frontends.torch.export import Dynamic, export_module
from ingot.frontends.torch.file import import_sized, load_exported
from ingot.frontends.torch.model import COMPLEX, FIXED, NUMBER, SIZE, ImportedModel
from ingot.frontends.torch.program import import_exported
from ingot.support.errors import InputError, SizesError


class Retrace:
    """Imports the model for the sizes of a call that was refused; returns None if that would be the same program."""

    def __init__(self, model: object, imported: ImportedModel, example_inputs: Any, dynamic: Dynamic) -> None:
        """model: a module, an exported program or a file of one, as it was imported."""
        self._model, self._example, self._dynamic = model, example_inputs, dynamic
        self._inputs, self._state = imported.inputs, frozenset(imported.state)
        self._versions = self._weights()

    def __call__(self, refused: SizesError) -> ImportedModel | None:
        """Raises InputError where the model's weights have changed since, and as importing does."""
        zeros = [name for name, size in refused.out_of_range.items() if size == 0]
        if not _open(self._dynamic, zeros):
            return None
        if isinstance(self._model, nn.Module):
            if self._weights() != self._versions:
                fix = "compile it again, or keep to sizes that it was traced for"
                what = "the module's weights"
                raise InputError(what, expected="those that it was compiled with", got="others", fix=fix)
            args, kwargs = self._of_sizes(refused.shapes)
            return import_exported(export_module(self._model, args or kwargs, self._dynamic, keep_small=True))
        if not zeros or not isinstance(self._model, Path | ExportedProgram):
            return None
        program = load_exported(self._model) if isinstance(self._model, Path) else self._model
        return import_sized(program, self._dynamic, zeros)

    def _weights(self) -> Sequence[tuple[int, int]]:
        """The module's tensors except its state, and the number of writes to them."""
        if not isinstance(self._model, nn.Module):
            return []
        named = [*self._model.named_parameters(), *self._model.named_buffers()]
        return [(id(t), 0 if t.is_inference() else t._version) for name, t in named if name not in self._state]

    def _of_sizes(self, sizes: Sequence[tuple[int, ...]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example's arguments with a call's sizes. sizes: the shapes of the graph's inputs."""
        args, kwargs = ((), self._example) if isinstance(self._example, Mapping) else (self._example, {})
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
        return pytree.tree_unflatten(list(self._leaves(args, dict(kwargs), iter(sizes))), self._inputs.spec)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Iterator[tuple[int, ...]]) -> Iterator[Any]:
        for leaf, value in zip(self._inputs.leaves, self._inputs.leaves_of(args, kwargs), strict=True):
            if leaf.kind == FIXED:
                yield value
                continue
            shape = next(sizes)
            if leaf.kind == SIZE:
                yield shape[0]
            elif leaf.kind == NUMBER:
                yield value
            else:
                shape = shape[:-1] if leaf.kind == COMPLEX else shape
                yield value if tuple(value.shape) == shape else value.new_zeros(shape)


def _open(dynamic: Any, names: Collection[str]) -> bool:
    """Whether `dynamic` allows these sizes to be 0; explicit bounds, (name, lowest, highest) or name: (lowest,
    highest), do not."""
    match dynamic:
        case (str(name), int(low), _):
            return low == 0 or name not in names
        case Mapping():
            open_names = (
                k for k, v in dynamic.items() if isinstance(v, tuple) and len(v) == 2 and isinstance(v[0], int)
            )
            return not set(names).intersection(open_names) and all(_open(v, names) for v in dynamic.values())
        case list() | tuple():
            return all(_open(v, names) for v in dynamic)
        case _:
            return True
