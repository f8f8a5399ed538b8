"""A function of TensorFlow, in a process that has imported TensorFlow: its graph and its captured values.

fn(args)  ->  concrete function  ->  GraphDef, whose placeholders are arguments, variables and constants
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.frontends.tensorflow.model import Endpoint, Program
from ingot.frontends.tensorflow.proto import GraphDef, read_message, shape_of
from ingot.frontends.tensorflow.values import Value, Variable
from ingot.ir.node import Node, const
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError


@dataclass(frozen=True)
class ImportedFunction:
    """A function as a program, with the adapters from its arguments and to its results."""

    program: Program
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], list[np.ndarray]]
    unflatten: Callable[[Sequence[Any]], Any]


def of_function(function: Any, example_inputs: Any = None) -> ImportedFunction:
    """function: a concrete function, or a `tf.function` with example inputs or a signature of its own.

    Raises InputError for what is neither.
    """
    concrete = _concrete(function, example_inputs)
    graph = concrete.graph
    data = graph.as_graph_def().SerializeToString()
    where = str(concrete.name.decode() if isinstance(concrete.name, bytes) else concrete.name)
    variable_of = {id(v.handle): v for v in graph.variables}
    captured: dict[str, Value] = {}
    variables: dict[str, Node] = {}
    for outer, inner in graph.captures:
        variable = variable_of.get(id(outer))
        if variable is not None:
            captured[inner.name] = Variable(inner.name)
            variables[inner.name] = const(variable.numpy(), loc=variable.name)
        elif outer.dtype.is_numpy_compatible and hasattr(outer, "numpy"):
            captured[inner.name] = const(outer.numpy())
    own_inputs = [t for t in graph.inputs if t.name not in {inner.name for _, inner in graph.captures}]
    program = Program(
        GraphDef.read(read_message(memoryview(data), "a GraphDef", where)),
        tuple(_endpoint(t) for t in own_inputs),
        tuple(Endpoint(_word(t), t.name) for t in graph.outputs if t is not None),
        where,
        effects=tuple(op.name for op in graph.control_outputs),
        captured=captured,
        variables=variables,
    )
    return ImportedFunction(program, _flattener(concrete, own_inputs), _unflattener(concrete))


def _concrete(function: Any, example_inputs: Any) -> Any:
    if hasattr(function, "structured_input_signature"):
        if example_inputs is not None:
            raise InputError("example_inputs", expected="none: a concrete function has its inputs", got="some")
        return function
    if not hasattr(function, "get_concrete_function"):
        raise InputError("a TensorFlow model", expected="a tf.function or a concrete one", got=type(function).__name__)
    if isinstance(example_inputs, Mapping):
        return function.get_concrete_function(**example_inputs)
    return function.get_concrete_function(*(example_inputs or ()))


def _word(tensor: Any) -> str:
    return tensor.name.removesuffix(":0").replace(":", "_")


def _endpoint(tensor: Any) -> Endpoint:
    shape = read_message(memoryview(tensor.shape.as_proto().SerializeToString()), "a TensorShapeProto", tensor.name)
    return Endpoint(_word(tensor), tensor.name, tensor.dtype.as_datatype_enum, shape_of(shape))


def _flattener(
    concrete: Any, parameters: Sequence[Any]
) -> Callable[[Sequence[Any], Mapping[str, Any]], list[np.ndarray]]:
    from tensorflow import nest

    def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[np.ndarray]:
        leaves = nest.flatten((tuple(args), dict(kwargs)))
        if len(leaves) != len(parameters):
            signature = concrete.structured_input_signature
            raise InputError(
                "arguments", expected=f"{len(parameters)} tensors, as in {signature}", got=f"{len(leaves)}"
            )
        return [np.asarray(leaf, t.dtype.as_numpy_dtype) for leaf, t in zip(leaves, parameters, strict=True)]

    return flatten


def _unflattener(concrete: Any) -> Callable[[Sequence[Any]], Any]:
    from tensorflow import nest

    structure = concrete.structured_outputs

    def unflatten(outputs: Sequence[Any]) -> Any:
        return nest.pack_sequence_as(structure, list(outputs), expand_composites=False)

    return unflatten
