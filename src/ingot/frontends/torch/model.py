"""An imported program: its graph, and the adapters of the user's arguments to its inputs and of its outputs back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ingot.frontends.torch.convert import to_torch
from ingot.ir.node import Graph
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

TENSOR, COMPLEX, SIZE, NUMBER, FIXED = "tensor", "complex", "size", "number", "fixed"


@dataclass(frozen=True)
class Leaf:
    """One leaf of the user's arguments.

    `kind`: tensor; complex (a [..., 2] of the graph); size (an int that sizes depend on); number (a float); fixed.
    """

    name: str
    kind: str
    value: object = None


@dataclass(frozen=True)
class InputAdapter:
    """(args, kwargs) of the model's forward -> the graph's inputs.

    Attributes:
        spec: torch's tree of (args, kwargs).
        leaves: the tree's leaves in order.
        signature: forward's, so that an argument may come by position, by name, or not at all where it has a default.
    """

    spec: pytree.TreeSpec
    leaves: tuple[Leaf, ...]
    signature: inspect.Signature | None = None

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Sequence[torch.Tensor]:
        """The graph's inputs, in its order, as tensors.

        An int that sizes depend on becomes a bool tensor of shape [n, 0]: the graph reads its shape only.
        Raises InputError for another structure than the exported one, or another value of a fixed argument.
        """
        if not kwargs and self.is_plain and len(args) == len(self.leaves) and _are_tensors(args):
            return args
        flat = self.leaves_of(tuple(args), dict(kwargs or {}))
        inputs: list[torch.Tensor] = []
        for leaf, value in zip(self.leaves, flat, strict=True):
            if leaf.kind == FIXED:
                self._check_fixed(leaf, value)
            else:
                inputs.append(_tensor(leaf, value))
        return inputs

    @cached_property
    def is_plain(self) -> bool:
        """Whether the arguments are just positional tensors."""
        args, kwargs = _children(self.spec)
        flat = not kwargs.num_leaves and all(c.is_leaf() for c in _children(args))
        return flat and all(leaf.kind == TENSOR for leaf in self.leaves)

    def leaves_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """A call's leaves in the order of `leaves`. Raises InputError for another structure than the exported one."""
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec == self.spec:
            return flat
        if self.signature is not None:
            args, kwargs = self._rearranged(self.signature, args, kwargs)
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.spec:
            raise InputError(
                "arguments",
                expected=_describe(self.spec),
                got=_describe(spec),
                fix="call the compiled model with the structure that it was exported with",
            )
        return flat

    def _rearranged(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments, each by position or by name as it was exported; defaults for omitted ones."""
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as e:
            raise InputError("arguments", expected=f"those of forward{signature}", got=str(e)) from e
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        positional, keyword = _children(self.spec)
        count, values = len(_children(positional)), list[Any]()
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                values += arguments.pop(name)
            elif parameter.kind is not parameter.KEYWORD_ONLY and len(values) < count:
                values.append(arguments.pop(name))
        named = {name: arguments.pop(name) for name in keyword.context or [] if name in arguments}
        for name, value in arguments.items():
            # arguments that the example omitted were traced with their defaults
            parameter = signature.parameters.get(name)
            default = inspect.Parameter.empty if parameter is None else parameter.default
            self._check_fixed(Leaf(name, FIXED, default), value)
        return tuple(values), named

    def _check_fixed(self, leaf: Leaf, value: object) -> None:
        tensors = isinstance(value, torch.Tensor | np.ndarray)  # == is elementwise, so compare identity
        if value is leaf.value or (not tensors and type(value) is type(leaf.value) and value == leaf.value):
            return
        absent = leaf.value is inspect.Parameter.empty
        raise InputError(
            f"argument {leaf.name!r}",
            expected="none, as exported" if absent else f"{leaf.value!r}, as exported",
            got=repr(value)[:80],
            fix="compile again with this value among the example inputs",
        )


def _are_tensors(values: Sequence[object]) -> bool:
    return _TENSOR_TYPES.issuperset(map(type, values)) or all([isinstance(v, torch.Tensor) for v in values])


_TENSOR_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))  # of nearly all: a set tells in a fifth of the time


def _tensor(leaf: Leaf, value: object) -> torch.Tensor:
    if leaf.kind in (TENSOR, COMPLEX):
        if isinstance(value, np.ndarray):
            value = to_torch(value)
        if not isinstance(value, torch.Tensor):
            fix = "compile again without it among the example inputs" if value is None else ""
            raise InputError(f"argument {leaf.name!r}", expected="a tensor", got=type(value).__name__, fix=fix)
        if leaf.kind == TENSOR:
            return value
        if not value.is_complex():
            raise InputError(f"argument {leaf.name!r}", expected="a complex tensor", got=value.dtype)
        return torch.view_as_real(value.resolve_conj())
    if isinstance(value, bool) or not isinstance(value, int if leaf.kind == SIZE else int | float):
        raise InputError(
            f"argument {leaf.name!r}", expected="an int" if leaf.kind == SIZE else "a number", got=repr(value)
        )
    if leaf.kind == NUMBER:
        return torch.tensor(float(value), dtype=torch.float64)
    if value < 0:
        raise InputError(f"argument {leaf.name!r}", expected="a size of at least 0", got=value)
    return torch.empty((int(value), 0), dtype=torch.bool)


@dataclass(frozen=True)
class OutputAdapter:
    """The graph's outputs -> the result of the model's forward.

    Attributes:
        spec: torch's tree of the result.
        leaves: per leaf (kind, value): a tensor's or size's index among the graph's outputs, or a fixed value.
        names: a name for every output of the graph.
    """

    spec: pytree.TreeSpec
    leaves: tuple[tuple[str, Any], ...]
    names: tuple[str, ...]

    def unflatten(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The model's own structure (tuples, dicts, dataclasses such as ModelOutput) around the tensors."""
        values = outputs if self._has_all else [self._leaf(kind, value, outputs) for kind, value in self.leaves]
        if self.spec.is_leaf():
            return values[0]
        return tuple(values) if self._is_flat else pytree.tree_unflatten(values, self.spec)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the result is a tuple of the graph's outputs."""
        return self._has_all and self._is_flat

    @cached_property
    def _has_all(self) -> bool:
        """Whether the leaves are the graph's outputs in their order."""
        return self.leaves == tuple((TENSOR, i) for i in range(len(self.names)))

    @cached_property
    def _is_flat(self) -> bool:
        """Whether the result is a flat tuple of leaves: torch's pytree would take a microsecond for each leaf."""
        return self.spec.type is tuple and all(c.is_leaf() for c in _children(self.spec))

    @staticmethod
    def _leaf(kind: str, value: Any, outputs: Sequence[torch.Tensor]) -> Any:
        if kind == TENSOR:
            return outputs[value]
        if kind == COMPLEX:
            return torch.complex(*outputs[value].unbind(-1))
        return value if kind == FIXED else int(outputs[value]) if kind == SIZE else outputs[value].item()


@dataclass(frozen=True)
class ImportedModel:
    """A PyTorch program as a graph, with the adapters between the model's own calls and the graph.

    state: names and initial values of the buffers that forward writes. They are the graph's inputs after the user's,
    and their new values its outputs before the user's. writes: positions of the user's inputs that forward writes;
    their new values are the outputs after the state's. parameters: names and values of tensors that are the graph's
    inputs before the state's. renewed: the parameters that forward writes; their new values follow the state's.
    packed: how many of the graph's last inputs and outputs the adapters have as one tensor each. saves: the packed
    outputs are for another graph alone.
    """

    graph: Graph
    inputs: InputAdapter
    outputs: OutputAdapter
    state: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    writes: tuple[int, ...] = ()
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    renewed: tuple[str, ...] = ()
    packed: tuple[int, int] = (0, 0)
    saves: bool = False

    def caller(self, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]) -> Callable[..., Any]:
        """`run` (graph inputs to outputs, without state) as a function with the model's own arguments and result."""
        flatten, unflatten = self.inputs.flatten, self.outputs.unflatten
        count = len(self.inputs.leaves)

        def call(*args: Any, **kwargs: Any) -> Any:
            return unflatten(run(flatten(args, kwargs)))

        def call_of_tensors(*args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) != count or not _are_tensors(args):
                return call(*args, **kwargs)
            return tuple(run(args))

        def writing(*args: Any, **kwargs: Any) -> Any:
            inputs = flatten(args, kwargs)
            outputs = run(inputs)
            for place, value in zip(self.writes, outputs, strict=False):
                inputs[place].copy_(value)
            return unflatten(outputs[len(self.writes) :])

        if self.writes:
            return writing
        return call_of_tensors if self.inputs.is_plain and self.outputs.is_plain else call


def output_names(spec: pytree.TreeSpec) -> list[str]:
    """A name per leaf of a result: its path in dicts and dataclasses (`logits`), else output_0, output_1."""
    names: list[str] = []
    for i, path in enumerate(_paths(spec)):
        name = "_".join(path)
        names.append(name if name and not name[0].isdigit() else f"output_{name}" if name else f"output_{i}")
    return [n if names.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(names)]


def _paths(spec: pytree.TreeSpec) -> Iterator[tuple[str, ...]]:
    """The path of keys to each leaf."""
    if spec.is_leaf():
        yield ()
        return
    children = _children(spec)
    for key, child in zip(_keys(spec.context, len(children)), children, strict=True):
        yield from ((key, *path) for path in _paths(child))


def _keys(context: Any, count: int) -> Sequence[str]:
    """The names of a container's `count` parts. Libraries register their own containers, often without accessors; the
    context that rebuilds one is a mapping by field names, a list of names, or a named tuple's class."""
    lists = [context, *context] if isinstance(context, list | tuple) else [getattr(context, "_fields", ())]
    for keys in lists:
        if isinstance(keys, list | tuple) and len(keys) == count and all(isinstance(k, str | int) for k in keys):
            return [str(k) for k in keys]
    return [str(i) for i in range(count)]


def _children(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    # a method in newer versions, a field named children_specs in older ones
    method: Callable[[], list[pytree.TreeSpec]] | None = getattr(spec, "children", None)
    return list(spec.children_specs) if method is None else list(method())


def _describe(spec: pytree.TreeSpec) -> str:
    args, kwargs = _children(spec)
    named = ", ".join(f"{k}=..." for k in kwargs.context or [])
    return f"{len(_children(args))} positional arguments ({args.num_leaves} leaves)" + (
        f" and {named}" if named else ""
    )
