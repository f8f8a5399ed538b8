"""ONNX models by others: whole or value by value in ONNX Runtime, and one node as ONNX's own reference defines it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.debug.comparison.foreign import RefusedError
from ingot.debug.comparison.tolerance import Agreement, agree, worst
from ingot.debug.feeds import Feeds
from ingot.support.errors import ImportModelError

if TYPE_CHECKING:
    import onnx

Run = Callable[[Feeds], list[np.ndarray]]
Values = Mapping[str, np.ndarray]


def session(model: str | bytes) -> Run:
    """ONNX Runtime on a file or a serialized model, without its graph optimizations: the plain meaning of the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what matters is in the raised error
    try:
        engine = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own errors have no other base
        raise ImportModelError(f"ONNX Runtime refuses the model: {error}") from error
    names = [i.name for i in engine.get_inputs()]
    outputs = engine.get_outputs()
    labels = _labels(model) if any(o.type.startswith("seq(map") for o in outputs) else {}

    def run(feeds: Feeds) -> list[np.ndarray]:
        try:
            results = engine.run(None, {name: feeds[name] for name in names if name in feeds})
        except Exception as error:
            raise RefusedError(f"ONNX Runtime cannot run the model: {error}") from error
        return [_array(out, labels.get(o.name)) for o, out in zip(outputs, results, strict=True)]

    return run


def _labels(model: str | bytes) -> dict[str, Sequence[int | str]]:
    """What the columns are of each value that a ZipMap makes."""
    import onnx

    proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model, load_external_data=False)
    zips = [node for node in proto.graph.node if node.op_type == "ZipMap"]
    attributes = {n.output[0]: {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in zips}
    return {
        name: [s.decode() for s in values.get("classlabels_strings", ())] or values.get("classlabels_int64s", [])
        for name, values in attributes.items()
    }


def _array(result: Any, labels: Sequence[int | str] | None) -> np.ndarray:
    """A ZipMap's rows, maps from labels to numbers, are the rows of a matrix."""
    if labels is None:
        return np.asarray(result)
    return np.array([[row[k] for k in labels] for row in result], np.float32).reshape(len(result), len(labels))


def with_all_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every value that a node of its main graph makes as an output, in the nodes' order."""
    return with_outputs(model, [name for node in model.graph.node for name in node.output if name])


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with these outputs, which may be any values of its main graph."""
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    declared = {o.name: o for o in model.graph.output}
    del changed.graph.output[:]
    for name in names:
        changed.graph.output.append(declared.get(name) or onnx.helper.make_empty_tensor_value_info(name))
    return changed


class Definitions:
    """Evaluates the nodes of a model by onnx.reference, in float64, on operands that another implementation
    computed."""

    def __init__(self, model: onnx.ModelProto, feeds: Feeds) -> None:
        import onnx

        weights = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
        self._model, self._constants = model, {**weights, **feeds}

    def culprit(self, value: str, ours: Values, theirs: Values, tolerance: float | None) -> tuple[onnx.NodeProto, bool]:
        """Which node is computed otherwise than it is defined, where `value` is the first that is apart; and whether it
        is right in `ours`, not in `theirs`.

        Where both are right by the operands that each has, the node makes small differences large, and it is who is
        furthest off up to there.
        """
        nodes = self._model.graph.node
        last = next(i for i, node in enumerate(nodes) if value in node.output)
        mine, other = (self._error(nodes[last], values, tolerance) for values in (ours, theirs))
        if mine is None or other is None or not (mine.ok and other.ok):
            return nodes[last], mine is not None and other is not None and mine.ok
        largest_error, culprit, foreign = 0.0, last, False
        for i, node in enumerate(nodes[: last + 1]):
            for values in (ours, theirs):
                error = self._error(node, values, tolerance)
                if error is not None and error.relative > largest_error:
                    largest_error, culprit, foreign = error.relative, i, values is theirs
        return nodes[culprit], foreign

    def _error(self, node: onnx.NodeProto, values: Values, tolerance: float | None) -> Agreement | None:
        """How far a node's results in `values` are off, by its operands there; None where the reference lacks it."""
        defined = self._results(node, values)
        if defined is None:
            return None
        results = [values[name] for name in node.output if name]
        with np.errstate(over="ignore"):
            return worst([agree(x, y.astype(x.dtype), tolerance) for x, y in zip(results, defined, strict=True)])

    def _results(self, node: onnx.NodeProto, values: Values) -> tuple[np.ndarray, ...] | None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        values_by_name = {**self._constants, **values}
        names = [name for name in dict.fromkeys(_read(node)) if name in values_by_name]
        inputs = [onnx.helper.make_empty_tensor_value_info(name) for name in names]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=self._model.opset_import, functions=self._model.functions)
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(model).run(None, {name: _wide(values_by_name[name]) for name in names})
        except Exception:  # whatever its many small implementations raise: there is no definition to go by
            return None
        arrays = [np.asarray(x) for x in results] if isinstance(results, list) else []
        return tuple(arrays) if arrays and all(x.dtype.kind in "biuf" for x in arrays) else None


def _read(node: onnx.NodeProto) -> list[str]:
    """Names that a node and its bodies read."""
    inner = [g for a in node.attribute for g in (a.g, *a.graphs)]
    return [*node.input, *(name for g in inner for n in g.node for name in _read(n))]


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x
