"""What a traced program must express of a module's gradients: regions without gradients, and functions with custom
ones.

class Clipped(torch.autograd.Function)   ->   y = forward(x); dx = backward(cotangent(y))
y = Clipped.apply(x)                          y = own_gradient([y], [cotangent(y)], [x], [dx])
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from ingot.support.errors import UnsupportedOp, UnsupportedOpError

# ops without autograd kernels, which would be Functions again
_library = torch.library.Library("ingot", "DEF")
# the cotangent of a function's result y with index `number`, as its backward pass reads it
_library.define("cotangent(Tensor y, int number) -> Tensor")
_library.impl("cotangent", lambda y, number: torch.zeros_like(y), "CompositeExplicitAutograd")
# returns ys; `gradients`, computed from the cotangents of ys, are the gradients of xs
_library.define("own_gradient(Tensor[] ys, Tensor[] cotangents, Tensor[] xs, Tensor[] gradients) -> Tensor[]")
_library.impl("own_gradient", lambda ys, *others: [y.clone() for y in ys], "CompositeExplicitAutograd")
_ops = torch.ops.ingot


@contextmanager
def traced_for(gradients: bool) -> Iterator[None]:
    """Within the block, torch.export traces for a program that will (or will not) be differentiated.

    If it will, the program contains the backward pass of each `torch.autograd.Function`, too.
    """
    with torch.set_grad_enabled(gradients):
        if not gradients:
            yield
            return
        with patch.object(Function, "apply", classmethod(_applied)):
            yield


_apply = Function.__dict__["apply"]  # a class method, which is C code from PyTorch 2.14 on


class _FunctionContext:
    """The values that a Function's forward pass saves for its backward pass: torch's `ctx`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.materialized = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """For forward mode, which is not used here."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.non_differentiable = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise _refused("a Function that writes its arguments")

    def set_materialize_grads(self, value: bool) -> None:
        self.materialized = value


def _refused(what: str) -> UnsupportedOpError:
    return UnsupportedOpError([UnsupportedOp("autograd.Function", "the module to differentiate", what)])


def _applied(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    """`cls.apply(*args)`, with its backward pass traced after its forward pass.

    Raises UnsupportedOpError for a function that writes its arguments.
    """
    # the Functions of torch.cond and the like exist for autograd only: their regions are differentiated instead
    if not torch.is_grad_enabled() or cls.__module__.startswith("torch._higher_order_ops."):
        return _apply.__get__(None, cls)(*args, **kwargs)
    if cls is CheckpointFunction:
        # checkpointing: the backward pass is that of the checkpointed function, recomputed
        function, _, *operands = args
        return function(*operands)
    learned = [i for i, x in enumerate(args) if _is_float(x)]
    context = _FunctionContext(tuple(i in learned for i in range(len(args))))
    if cls.setup_context is Function.setup_context:
        results = cls.forward(context, *args, **kwargs)
    else:
        results = cls.forward(*args, **kwargs)
        cls.setup_context(context, args, results)
    is_sequence = isinstance(results, tuple | list)
    ys = list(results) if is_sequence else [results]
    differentiable = [
        i for i, y in enumerate(ys) if _is_float(y) and not any(y is x for x in context.non_differentiable)
    ]
    if not differentiable or not learned:
        return results
    cotangents = {i: _ops.cotangent(ys[i], number) for number, i in enumerate(differentiable)}
    of_results = [cotangents.get(i, _zeros(y) if context.materialized else None) for i, y in enumerate(ys)]
    backward = cls.backward if cls.vjp is Function.vjp else cls.vjp
    # unwrapped from `once_differentiable`, which only guards against double differentiation
    gradients = pytree.tree_leaves(inspect.unwrap(backward)(context, *of_results), is_leaf=lambda x: x is None)
    gradients = [gradients[i] for i in learned]
    xs = [args[i] for i in learned]
    gradients = [torch.zeros_like(x) if g is None else _reduced_to(g, x) for g, x in zip(gradients, xs, strict=True)]
    results_with_gradient = _ops.own_gradient([ys[i] for i in differentiable], list(cotangents.values()), xs, gradients)
    for i, y in zip(differentiable, results_with_gradient, strict=True):
        ys[i] = y
    return type(results)(ys) if is_sequence else ys[0]


def _is_float(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _zeros(y: object) -> object:
    return torch.zeros_like(y) if isinstance(y, Tensor) else None


def _reduced_to(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient summed and cast to x's shape and type, as autograd does."""
    return gradient.sum_to_size(x.shape).to(x.dtype)


__all__ = ["traced_for"]
