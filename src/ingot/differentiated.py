"""A model whose result is a loss, compiled together with its gradients: one program gives both, or these alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingot import ops
from ingot.autodiff import value_and_gradients
from ingot.compiler import Options, built, compiled
from ingot.opening import Request, open_model
from ingot.runtime.executor import CompiledProgram
from ingot.runtime.tensors import is_tensor
from ingot.support.errors import InputError, check_once

if TYPE_CHECKING:
    from ingot.ir.node import Graph, Node
from ingot.opening import Opened


class DifferentiatedModel:
    """Called as the model is: gives (loss, {input: gradient}), or the gradients alone where the value is not asked for,
    arrays of the inputs' types and shapes.

    program: the compiled graph, over the model's flat inputs; it can be saved and loaded as any other.
    """

    def __init__(self, read: Opened, program: CompiledProgram, wrt: Sequence[str], value: bool) -> None:
        self.program, self.wrt, self._value = program, tuple(wrt), value
        self._flatten = read.flatten

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._flatten is not None:
            args, kwargs = tuple(self._flatten(args, kwargs)), {}
        found = self.program(*map(_detached, args), **{name: _detached(value) for name, value in kwargs.items()})
        every: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
        gradients = dict(zip(self.wrt, every[self._value :], strict=True))
        return (every[0], gradients) if self._value else gradients

    def __repr__(self) -> str:
        return f"DifferentiatedModel(by {', '.join(self.wrt)})"


def differentiate(
    model: Any, example_inputs: Any, wrt: str | Sequence[str] | None, dynamic: Any, options: Options, *, value: bool
) -> DifferentiatedModel:
    """See `ingot.value_and_grad`, and without the value `ingot.grad`."""
    read = open_model(model, Request(example_inputs, dynamic, gradients=True)).stateless()
    graph = read.graph
    if len(graph.results) != 1:
        raise InputError("the model", expected="one result, the loss", got=f"{len(graph.results)} results")
    labels = [x.op.label for x in graph.inputs]  # type: ignore[attr-defined]
    chosen = _chosen(graph, labels, wrt)
    differentiated = value_and_gradients(graph, lambda results: _scalar(results[0]), chosen)
    if not value:
        outputs, names = differentiated.outputs[1:], differentiated.output_names[1:]
        differentiated = replace(differentiated, outputs=outputs, output_names=names)
    program = compiled(built(lambda: differentiated, options), options)
    return DifferentiatedModel(read, program, [labels[i] for i in chosen], value)


def _detached(value: Any) -> Any:
    """A tensor that requires a gradient as one that does not: the gradient is among the results."""
    return value.detach() if is_tensor(value) and value.requires_grad else value


def _scalar(loss: Node) -> Node:
    """A result of one element as the scalar that it is."""
    if loss.shape and all(d == 1 for d in loss.shape):
        return ops.reshape(loss, ())
    return loss


def _chosen(graph: Graph, labels: Sequence[str], wrt: str | Sequence[str] | None) -> list[int]:
    floats = [i for i, x in enumerate(graph.inputs) if x.dtype.is_float]
    if wrt is None:
        if not floats:
            raise InputError("the model", expected="an input of floats", got=[str(x.type) for x in graph.inputs])
        return floats
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    check_once("wrt", names)
    unknown = [n for n in names if n not in labels]
    if unknown or not names:
        raise InputError("wrt", expected=f"some of {', '.join(labels)}", got=unknown or "none")
    at = [labels.index(n) for n in names]
    if whole := [labels[i] for i in at if i not in floats]:
        raise InputError("wrt", expected="inputs of floats", got=whole, fix="leave integers out")
    return at
