"""An ONNX model for training: parameters become inputs, and what inference fixed moves again.

Batch norms normalize by their batch and keep running statistics, dropout drops; the model that users get back is their
own with other initializers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ingot.frontends.onnx.importer import import_onnx, read_model
from ingot.frontends.onnx.tensors import to_array
from ingot.ir.node import Graph
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, to_train

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_TRAINING_MODE = 14  # the first opset whose BatchNormalization has it
# operands that say how an op works and are nothing that it learns
_SETTINGS = {
    "Resize": (1, 2), "Upsample": (1,), "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "Clip": (1, 2),
    "Pad": (2,), "Pow": (1,), "Dropout": (1,), "Range": (0, 1, 2),
}  # fmt: skip
# ops whose initializers are weights even if they are one number
_LEARNED = frozenset({"Gemm", "Conv", "ConvTranspose", "PRelu", "LSTM", "GRU", "RNN", "Add"})


@dataclass(frozen=True)
class TrainableModel:
    """graph: its inputs are the model's, then parameters, then buffers, each under its own name; its outputs the
    buffers' next values, then the model's."""

    graph: Graph
    parameters: Mapping[str, np.ndarray]
    buffers: Mapping[str, np.ndarray]
    restore: Callable[[Mapping[str, np.ndarray]], onnx.ModelProto]


def import_trainable(
    source: str | os.PathLike[str] | onnx.ModelProto, dynamic: object, patterns: tuple[str, ...] | None
) -> TrainableModel:
    """patterns: of the names of initializers to train; by default all floats that no op takes as a setting.

    Raises what `import_onnx` raises, and InputError for patterns that fit nothing or integers.
    """
    model, arrays = _loaded(source)
    buffers = _training(model)
    learned = _chosen(model.graph, buffers, patterns)
    moved = {**{name: arrays[name] for name in learned}, **{name: arrays[name] for name in buffers}}
    kept = [t for t in model.graph.initializer if t.name not in moved]
    types = {t.name: t.data_type for t in model.graph.initializer}
    own = [i for i in model.graph.input if i.name not in moved]
    infos = [helper.make_tensor_value_info(name, types[name], a.shape) for name, a in moved.items()]
    after = [helper.make_tensor_value_info(buffers[n], types[n], arrays[n].shape) for n in buffers]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for field, values in (("initializer", kept), ("input", [*own, *infos]), ("output", [*after, *model.graph.output])):
        changed.graph.ClearField(field)
        getattr(changed.graph, field).extend(values)
    graph = import_onnx(changed, dynamic=dynamic)  # type: ignore[arg-type]  # checked there

    def restore(values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        out, _ = _loaded(source)
        for t in out.graph.initializer:
            if t.name in values:
                t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values[t.name]), t.name))
        return out

    parameters = {name: arrays[name] for name in learned}
    return TrainableModel(graph, parameters, {name: arrays[name] for name in buffers}, restore)


def _loaded(source: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A copy of the model that holds all its weights itself, and their arrays."""
    read, external, cuts, _ = read_model(source)
    model = onnx.ModelProto()
    model.CopyFrom(read)
    arrays: dict[str, np.ndarray] = {}
    for i, t in enumerate(model.graph.initializer):
        arrays[t.name] = np.asarray(to_array(t, external, cuts.get(i)))
        if i in cuts or t.data_location == onnx.TensorProto.EXTERNAL:
            t.ClearField("external_data")
            t.ClearField("data_location")
            t.raw_data = np.ascontiguousarray(arrays[t.name]).tobytes()
    return model, arrays


def _training(model: onnx.ModelProto) -> dict[str, str]:
    """Batch norms and dropout of the main graph as in training; running statistics and names of their next values."""
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    constants = {t.name for t in model.graph.initializer}
    after: dict[str, str] = {}
    for n in model.graph.node:
        if n.op_type == "Dropout" and n.domain == "" and version >= 12:
            on = f"{n.output[0]}.training"
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(True), on))
            ratio = n.input[1] if len(n.input) > 1 else ""
            del n.input[1:]
            n.input.extend([ratio, on])
        if n.op_type != "BatchNormalization" or not constants.issuperset(n.input[3:5]):
            continue
        if version < _TRAINING_MODE:
            fix = f"onnx.version_converter.convert_version(model, {_TRAINING_MODE + 3})"
            raise InputError("a batch norm to train", expected=f"opset {_TRAINING_MODE} or later", got=version, fix=fix)
        kept = [a for a in n.attribute if a.name != "training_mode"]
        n.ClearField("attribute")
        n.attribute.extend([*kept, helper.make_attribute("training_mode", 1)])
        names = [f"{name}.next" for name in n.input[3:5]]
        del n.output[1:]
        n.output.extend(names)
        after |= dict(zip(n.input[3:5], names, strict=True))
    return after


def _chosen(graph: onnx.GraphProto, buffers: Mapping[str, str], patterns: tuple[str, ...] | None) -> list[str]:
    read = {name: (op, place) for name, op, place in _reads(graph)}
    tensors = [t for t in graph.initializer if t.name in read and t.name not in buffers]
    if patterns is None:
        return [t.name for t in tensors if t.data_type in _FLOATS and _is_learned(t, *read[t.name])]
    return to_train(patterns, {t.name: t.data_type in _FLOATS for t in tensors})


def _is_learned(t: onnx.TensorProto, op: str, place: int) -> bool:
    if place in _SETTINGS.get(op, ()):
        return False
    size = int(np.prod(t.dims))
    return bool(t.dims) and (size > 1 or (size == 1 and (op in _LEARNED or op.endswith("Normalization"))))


def _reads(graph: onnx.GraphProto) -> Iterator[tuple[str, str, int]]:
    """(what is read, by an op of which type, as which operand), in this graph and those inside."""
    for n in graph.node:
        yield from ((name, n.op_type, i) for i, name in enumerate(n.input) if name)
        for a in n.attribute:
            for g in (a.g, *a.graphs):
                yield from _reads(g)
