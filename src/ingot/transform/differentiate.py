"""Differentiate a model whose result is a loss: one program computes the loss and its gradients, or only the
gradients."""

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
    """Takes the model's arguments and returns (loss, {input: gradient}), or for `ingot.grad` only the gradients.
    Gradients are arrays of the inputs' types and shapes.

    wrt: the inputs to differentiate with respect to. The program can be saved and loaded like any other; it returns the
    loss and the gradients as flat results.
    """

    def __init__(
        self, program: Program | Executable, opened: Opened, wrt: Sequence[str], has_value: bool, threads: int
    ):
        def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
            return [detached(argument) for argument in (opened.flatten or self._inputs_in_order)(args, kwargs)]

        def results(outputs: Sequence[Any]) -> Any:
            gradients = dict(zip(wrt, outputs[has_value:], strict=True))
            return (outputs[0], gradients) if has_value else gradients

        super().__init__(program, threads=threads, convention=tree_convention(flatten, results))
        self.wrt = tuple(wrt)


def differentiate(
    model: Any, example_inputs: Any, wrt: str | Sequence[str] | None, dynamic: Any, options: Options, *, has_value: bool
) -> DifferentiatedModel:
    """See `ingot.value_and_grad`; without the value, see `ingot.grad`."""
    opened = open_model(model, Request(example_inputs, dynamic, gradients=True)).stateless()
    graph = opened.graph
    if len(graph.results) != 1:
        raise InputError("the model", expected="one result, the loss", got=f"{len(graph.results)} results")
    labels = [x.op.label for x in graph.inputs]  # type: ignore[attr-defined]
    wrt_indices = _input_indices(graph, labels, wrt)
    differentiated = value_and_gradients(graph, lambda results: _scalar(results[0]), wrt_indices)
    if not has_value:
        outputs, names = differentiated.outputs[1:], differentiated.output_names[1:]
        differentiated = replace(differentiated, outputs=outputs, output_names=names)
    program = build_graph(lambda: differentiated, options)
    unloaded = unloaded_program(program, options.threads)
    return DifferentiatedModel(
        unloaded or program, opened, [labels[i] for i in wrt_indices], has_value, options.threads
    )


def detached(value: Any) -> Any:
    """A tensor without `requires_grad`: the gradient is one of the results."""
    return value.detach() if is_tensor(value) and value.requires_grad else value


def _scalar(loss: Node) -> Node:
    """The loss as a scalar, if it has one element."""
    if loss.shape and all(d == 1 for d in loss.shape):
        return ops.reshape(loss, ())
    return loss


def _input_indices(graph: Graph, labels: Sequence[str], wrt: str | Sequence[str] | None) -> list[int]:
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
    indices = [labels.index(n) for n in names]
    if integers := [labels[i] for i in indices if i not in floats]:
        raise InputError("wrt", expected="inputs of floats", got=integers, fix="omit integer inputs")
    return indices
