"""A model whose result is a loss, compiled together with its gradients: one program gives both, or these alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingot import ops
from ingot.autodiff import value_and_gradients
from ingot.driver.compile import Options, build_graph, unloaded_program
from ingot.driver.open import Opened, Request, open_model
from ingot.runtime.executable import Executable
from ingot.runtime.executor import CompiledModel, tree_convention
from ingot.runtime.program import Program
from ingot.runtime.tensors import is_tensor
from ingot.support.errors import InputError, check_once

if TYPE_CHECKING:
    from ingot.ir.node import Graph, Node


class DifferentiatedModel(CompiledModel):
    """Called as the model is: gives (loss, {input: gradient}), or the gradients alone where the value is not asked for,
    arrays of the inputs' types and shapes.

    wrt: the inputs that it is differentiated by. Its program, which can be saved and loaded as any other, gives the
    loss and the gradients as flat results.
    """

    def __init__(self, program: Program | Executable, read: Opened, wrt: Sequence[str], value: bool, threads: int):
        def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
            return [_detached(value) for value in (read.flatten or self._inputs_in_order)(args, kwargs)]

        def results(outputs: Sequence[Any]) -> Any:
            gradients = dict(zip(wrt, outputs[value:], strict=True))
            return (outputs[0], gradients) if value else gradients

        super().__init__(program, threads=threads, convention=tree_convention(flatten, results))
        self.wrt = tuple(wrt)


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
    program = build_graph(lambda: differentiated, options)
    other = unloaded_program(program, options.threads)
    return DifferentiatedModel(other or program, read, [labels[i] for i in chosen], value, options.threads)


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
