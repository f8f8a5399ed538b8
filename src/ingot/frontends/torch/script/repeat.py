"""Loops whose trip count is known only at run time, as torch's while_loop; and run-time numbers and conditions.

    while y.norm() > 1:  i += 1; y = y * 0.5     ->     while_loop(cond, body, (go, iteration, i, y), (what it reads,))

A loop's operands are its carried values and those that it reads from outside: tensors, and numbers as tensors of rank
0. Everything else in them (lengths of lists, strings, numbers that are only read) must stay unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop_op
from torch.utils import _pytree as pytree

from ingot.frontends.torch.script.graph import Block, Node
from ingot.support.dataclass import dataclass
from ingot.support.errors import UnsupportedOp, UnsupportedOpError


@dataclass(frozen=True)
class Truth:
    """A condition that is known only at run time."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Number:
    """A number that is known only at run time: i64 or, for a float, f64."""

    tensor: torch.Tensor


Env = Mapping[str, Any]
# (a block's arguments, visible values by name, attributes) -> its results
Evaluate = Callable[[Sequence[Any], Env, Env], Sequence[Any]]

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg,
    "floordiv": operator.floordiv, "remainder": operator.mod, "pow": operator.pow, "abs": torch.abs,
    "min": torch.minimum, "max": torch.maximum,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[..., torch.Tensor]] = {
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
}  # fmt: skip


def tensor_of(value: Any) -> torch.Tensor:
    """A number, known or not, as a tensor."""
    if isinstance(value, Truth | Number):
        return value.tensor
    is_integer = isinstance(value, int | torch.SymInt)
    kind = torch.bool if isinstance(value, bool) else torch.int64 if is_integer else torch.float64
    return torch.scalar_tensor(value, dtype=kind)


def of_numbers(n: Node, base: str, args: Sequence[Any]) -> Any:
    """Evaluate an op on a run-time number. Raises UnsupportedOpError where the number must be known."""
    if base in ("add", "sub") and args[2:] == [1]:  # alpha
        args = args[:2]
    arithmetic = base in _ARITHMETIC and len(args) < 3
    numbers = [a for a in args if isinstance(a, bool | int | float | Truth | Number)]
    if len(numbers) == len(args):
        values = [tensor_of(a) for a in args]
        if base in _COMPARISONS:
            return Truth(_COMPARISONS[base](*values))
        if base in ("Bool", "Int", "Float"):
            kind = {"Bool": torch.bool, "Int": torch.int64, "Float": torch.float64}[base]
            return Truth(values[0] != 0) if base == "Bool" else Number(values[0].to(kind))
        if arithmetic:
            if base in ("min", "max"):
                values = list(torch.broadcast_tensors(*values))
            return Number(_ARITHMETIC[base](*values))
    if base == "select" and isinstance(args[2], Number) and isinstance(args[1], int):
        x, axis, index = args[0], args[1], args[2].tensor
        index = torch.where(index < 0, index + x.shape[axis], index)
        return torch.index_select(x, axis, index.reshape(1)).squeeze(axis)
    if arithmetic and isinstance(args[0], torch.Tensor | Number):
        return _ARITHMETIC[base](*_with_tensors(args))
    if base in _COMPARISONS:
        return _COMPARISONS[base](*_with_tensors(args))
    raise UnsupportedOpError([UnsupportedOp(n.kind, n.loc, "of a number that only the run knows")])


def _with_tensors(args: Sequence[Any]) -> list[Any]:
    """Arguments as tensors. A float among integers has the default float type, not f64."""
    is_integral = not any(isinstance(a, torch.Tensor) and a.dtype.is_floating_point for a in args)
    values = [a.tensor if isinstance(a, Number | Truth) else a for a in args]
    return [
        h.to(torch.get_default_dtype()) if is_integral and isinstance(a, Number) and h.dtype.is_floating_point else h
        for a, h in zip(args, values, strict=True)
    ]


# --- loops


@dataclass(frozen=True)
class _Form:
    """Converts nested values to tensors and back, by the kinds of the leaves (Truth, Number, Tensor, or constant)."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @staticmethod
    def of(values: Any, numbers: bool) -> _Form:
        """numbers: whether known numbers become tensors, too."""
        leaves, spec = pytree.tree_flatten(values)
        kinds: list[Any] = []
        for v in leaves:
            if isinstance(v, torch.Tensor):
                kinds.append(torch.Tensor)
            elif isinstance(v, Truth) or (numbers and isinstance(v, bool)):
                kinds.append(Truth)
            else:
                kinds.append(Number if isinstance(v, Number) or (numbers and isinstance(v, int | float)) else v)
        return _Form(spec, tuple(kinds))

    def tensors(self, values: Any) -> list[torch.Tensor]:
        """The leaves as tensors. Raises ValueError for values of another form."""
        leaves, spec = pytree.tree_flatten(values)
        if spec != self.spec:
            raise ValueError("another structure")
        operands: list[torch.Tensor] = []
        for kind, v in zip(self.leaves, leaves, strict=True):
            if kind is torch.Tensor and isinstance(v, torch.Tensor):
                operands.append(v)
            elif kind in (Truth, Number) and isinstance(v, bool | int | float | Truth | Number):
                operands.append(tensor_of(v))
            elif kind in (torch.Tensor, Truth, Number) or kind != v:
                raise ValueError("another kind of value")
        return operands

    def values(self, tensors: Sequence[torch.Tensor]) -> Any:
        remaining = iter(tensors)
        values: list[Any] = []
        for kind in self.leaves:
            if kind is torch.Tensor:
                values.append(next(remaining))
            else:
                values.append(kind(next(remaining)) if kind in (Truth, Number) else kind)
        return pytree.tree_unflatten(values, self.spec)


def repeat(
    n: Node,
    iteration: int,
    max_iterations: Any,
    is_going: Any,
    carried: Sequence[Any],
    env: Env,
    attributes: Env,
    evaluate: Evaluate,
) -> Sequence[Any]:
    """Run a loop while `is_going` holds, for at most `max_iterations` iterations, if given. Raises UnsupportedOpError
    for values whose form changes."""
    (block,) = n.blocks
    names, paths = _names_read(block)
    outer_values = {name: env[name] for name in names if name in env}
    state = {path: attributes[path] for path in paths if path in attributes}
    inner, outer = _Form.of(list(carried), True), _Form.of((outer_values, state, max_iterations), False)
    starts = [tensor_of(is_going).reshape(()), tensor_of(iteration), *inner.tensors(list(carried))]
    count = len(starts)

    def test(*tensors: torch.Tensor) -> torch.Tensor:
        *_, limit = outer.values(tensors[count:])
        return tensors[0] if limit is None else tensors[0] & (tensors[1] < tensor_of(limit))

    def body_on_tensors(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        visible, constants, _ = outer.values(tensors[count:])
        arguments = (Number(tensors[1]), *inner.values(tensors[2:count]))
        is_continued, *new = evaluate(arguments, visible, constants)
        ends = inner.tensors(new)
        for a, b in zip(starts[2:], ends, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise ValueError(f"{a.dtype}{list(a.shape)} becomes {b.dtype}{list(b.shape)}")
        # a result must not alias an operand
        return tensor_of(is_continued).reshape(()).clone(), tensors[1] + 1, *(e.clone() for e in ends)

    try:
        operands: Any = tuple(starts), tuple(outer.tensors((outer_values, state, max_iterations)))
        results = while_loop_op(test, body_on_tensors, *operands)
    except (ValueError, RuntimeError) as e:
        reason = f"a loop whose iterations only the run counts, and whose values change their form: {str(e)[:200]}"
        raise UnsupportedOpError([UnsupportedOp(n.kind, n.loc, reason)]) from e
    return inner.values(list(results)[2:])


def _names_read(block: Block) -> tuple[list[str], list[str]]:
    """Names that a block reads but does not define, and the attributes that it reads."""
    defined, names, paths = set(block.inputs), dict[str, None](), dict[str, None]()
    for n in block.nodes:
        names.update((i, None) for i in n.inputs if i not in defined)
        if n.kind == "prim::GetAttr":
            paths[n.attribute] = None
        for inner_block in n.blocks:
            inner_names, inner_paths = _names_read(inner_block)
            names.update((i, None) for i in inner_names if i not in defined)
            paths.update((p, None) for p in inner_paths)
        defined.update(n.outputs)
    names.update((o, None) for o in block.outputs if o not in defined)
    return list(names), list(paths)
