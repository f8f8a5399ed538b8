"""An ONNX model for training: parameters become inputs, and layers are switched to training mode.

Batch norms normalize by batch statistics and update running ones, and dropout is active. Users get their model back
with new initializers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from ingot.frontends.onnx.importer import import_onnx, read_model
from ingot.frontends.onnx.tensors import ExternalData, to_array
from ingot.ir.node import Graph
from ingot.support.dataclass import dataclass
from ingot.support.errors import select_trainable

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_MIN_IR_VERSION = 4  # the first version of files whose initializers need not be inputs
# operands that configure an op and are not learned
_SETTING_OPERANDS = {
    "Resize": (1, 2), "Upsample": (1,), "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "Clip": (1, 2),
    "Pad": (2,), "Pow": (1,), "Dropout": (1,), "Range": (0, 1, 2), "OneHot": (2,), "BatchNormalization": (3, 4),
    "LSTM": (5, 6), "GRU": (5,), "RNN": (5,),
}  # fmt: skip
# ops whose initializers are weights even if they are one number
_OPS_WITH_SCALAR_WEIGHTS = frozenset(
    {"Gemm", "MatMul", "Transpose", "Conv", "ConvTranspose", "PRelu", "LSTM", "GRU", "RNN", "Add"}
)


@dataclass(frozen=True)
class TrainableModel:
    """graph: its inputs are the model's, then parameters, then buffers, by their names; its outputs are the buffers'
    next values, then the model's outputs."""

    graph: Graph
    parameters: Mapping[str, np.ndarray]
    buffers: Mapping[str, np.ndarray]
    restore: Callable[[Mapping[str, np.ndarray]], onnx.ModelProto]


def import_trainable(
    source: str | os.PathLike[str] | onnx.ModelProto, dynamic: object, patterns: tuple[str, ...] | None
) -> TrainableModel:
    """patterns: of the names of initializers to train; by default all floats that no op takes as a setting.

    Raises as `import_onnx` does, and InputError for patterns that match nothing, or integers.
    """
    model, arrays = _loaded(source)
    buffers = _training(model)
    learned = _chosen(model.graph, arrays, buffers, patterns)
    trained_arrays = {**{name: arrays[name] for name in learned}, **{name: arrays[name] for name in buffers}}
    kept_initializers = [t for t in model.graph.initializer if t.name not in trained_arrays]
    types = {t.name: t.data_type for t in model.graph.initializer}
    own_inputs = [i for i in model.graph.input if i.name not in trained_arrays]
    infos = [helper.make_tensor_value_info(name, types[name], a.shape) for name, a in trained_arrays.items()]
    next_infos = [helper.make_tensor_value_info(buffers[n], types[n], arrays[n].shape) for n in buffers]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for field, values in (
        ("initializer", kept_initializers),
        ("input", [*own_inputs, *infos]),
        ("output", [*next_infos, *model.graph.output]),
    ):
        changed.graph.ClearField(field)
        getattr(changed.graph, field).extend(values)
    graph = import_onnx(changed, dynamic=dynamic)  # type: ignore[arg-type]  # checked there

    def restore(values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        restored, _ = _loaded(source)
        for t in restored.graph.initializer:
            if t.name in values:
                t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values[t.name]), t.name))
        return restored

    parameters = {name: arrays[name] for name in learned}
    return TrainableModel(graph, parameters, {name: arrays[name] for name in buffers}, restore)


def _loaded(source: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A copy of the model that holds all its weights itself, as initializers, and their arrays."""
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
    if model.functions:
        model = inliner.inline_local_functions(model)
    if not any(t.data_type in _FLOATS and len(t.dims) for t in model.graph.initializer):
        _lift_constants(model, arrays, external)
    _part(model, arrays)
    return model, arrays


def _lift_constants(model: onnx.ModelProto, arrays: dict[str, np.ndarray], external: ExternalData) -> None:
    """Turn Constant nodes into initializers, in a file that stores all its weights so (PaddlePaddle, OpenVINO)."""
    kept_nodes: list[onnx.NodeProto] = []
    for n in model.graph.node:
        t = n.attribute[0].t if n.op_type == "Constant" and n.attribute[0].name == "value" else None
        if t is not None and t.data_type in _FLOATS and np.prod(t.dims) > 1:
            arrays[n.output[0]] = np.asarray(to_array(t, external))
            _add(model, n.output[0], arrays[n.output[0]])
        else:
            kept_nodes.append(n)
    model.graph.ClearField("node")
    model.graph.node.extend(kept_nodes)


def _part(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> None:
    """Give each reader of a tensor that an exporter deduplicated a tensor of its own. Exporters store equal tensors
    once, and in an untrained net all scales and variances are ones, all shifts and means zeros. Running statistics
    follow the inputs of their own norm, so no two norms share them."""
    tensors = {t.name for t in model.graph.initializer}
    floats = {t.name for t in model.graph.initializer if t.data_type in _FLOATS}
    copies = _copies(model.graph, tensors)
    reads = [(n, i, copies.get(name, name)) for n in model.graph.node for i, name in enumerate(n.input)]
    reads = [r for r in reads if r[2] in floats and r[0].output[0] not in copies]
    merged = _merged(reads, arrays)
    names_in_use: set[str] = set()
    by_layer: dict[tuple[str, int, str], str] = {}  # the copies, by deduplicated tensor, layer and operand index
    for n, i, source in reads:
        if source not in merged and not _is_statistic(n, i):
            continue
        layer = None if _is_statistic(n, i) else _layer(model, n, n.input[i])
        if layer is not None and (source, i, layer) in by_layer:
            n.input[i] = by_layer[source, i, layer]
            continue
        names = (n.input[i], *(f"{source}.{k}" for k in range(1, len(reads) + 1)))
        own_name = next(name for name in names if name not in names_in_use)
        names_in_use.add(own_name)
        if own_name not in arrays:
            arrays[own_name] = arrays[source]
            _add(model, own_name, arrays[own_name])
        n.input[i] = own_name
        if layer is not None:
            by_layer[source, i, layer] = own_name
    nodes = [n for n in model.graph.node if n.output[0] not in names_in_use]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)


def _merged(reads: Sequence[tuple[onnx.NodeProto, int, str]], arrays: Mapping[str, np.ndarray]) -> set[str]:
    """The tensors of one repeated number that were deduplicated, rather than read by a layer that is called twice:
    there are some in several roles; or nothing else is read twice, and they have the initial values 0 or 1."""
    repeated = {name for _, _, name in reads if _is_one_number(arrays[name])}
    roles = {name: {(n.op_type, i) for n, i, source in reads if source == name} for name in repeated}
    if any(len(r) > 1 for r in roles.values()):
        return repeated
    others_read = [name for _, _, name in reads if name not in repeated and arrays[name].size > 1]
    return (
        {name for name in repeated if arrays[name].flat[0] in (0, 1)}
        if len(others_read) == len({*others_read})
        else set()
    )


def _copies(graph: onnx.GraphProto, tensors: Collection[str]) -> dict[str, str]:
    """Initializers by the results of Identity nodes that copy them, as some exporters write deduplicated tensors."""
    sources: dict[str, str] = {}
    for n in graph.node:
        if n.op_type == "Identity" and sources.get(n.input[0], n.input[0]) in tensors:
            sources[n.output[0]] = sources.get(n.input[0], n.input[0])
    return sources


def _layer(model: onnx.ModelProto, n: onnx.NodeProto, name: str) -> str | None:
    """The layer that reads a tensor, as far as PyTorch's exporters record it, so that a layer called twice keeps one
    tensor: the module in a norm's metadata, or the tensor's name where each deduplicated tensor has its Identity."""
    metadata = {p.key: p.value for p in n.metadata_props}
    classes = metadata.get("pkg.torch.onnx.class_hierarchy", "").strip("[]").split(", ")
    scopes, _, operation = metadata.get("pkg.torch.onnx.name_scopes", "").rpartition(", ")
    if operation and n.op_type.endswith("Normalization") and classes[-2:][0].strip("'").startswith("torch.nn.modules."):
        return scopes
    scripted = model.producer_name == "pytorch" and not metadata and n.name.startswith("/")
    return name if scripted else None


def _is_one_number(a: np.ndarray) -> bool:
    return a.size > 1 and bool((a == a.flat[0]).all())


def _is_statistic(n: onnx.NodeProto, place: int) -> bool:
    return n.op_type == "BatchNormalization" and place in _SETTING_OPERANDS[n.op_type]


def _add(model: onnx.ModelProto, name: str, a: np.ndarray) -> None:
    initializer = numpy_helper.from_array(a, name)
    model.graph.initializer.append(initializer)
    if model.ir_version < _MIN_IR_VERSION:
        model.graph.input.append(helper.make_tensor_value_info(name, initializer.data_type, initializer.dims))


def _training(model: onnx.ModelProto) -> dict[str, str]:
    """Switch batch norms and dropout of the main graph to training; returns the names of running statistics' next
    values by those of the statistics."""
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    constants = {t.name for t in model.graph.initializer}
    next_names: dict[str, str] = {}
    for n in model.graph.node:
        if n.op_type == "Dropout" and n.domain == "" and version >= 12:
            flag = f"{n.output[0]}.training"
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(True), flag))
            ratio = n.input[1] if len(n.input) > 1 else ""
            del n.input[1:]
            n.input.extend([ratio, flag])
        elif n.op_type == "Dropout" and n.domain == "":
            n.attribute.append(helper.make_attribute("training_mode", 1))
        if n.op_type != "BatchNormalization" or not constants.issuperset(n.input[3:5]):
            continue
        kept_attributes = [a for a in n.attribute if a.name != "training_mode"]
        n.ClearField("attribute")
        n.attribute.extend([*kept_attributes, helper.make_attribute("training_mode", 1)])
        names = [f"{name}.next" for name in n.input[3:5]]
        del n.output[1:]
        n.output.extend(names)
        next_names |= dict(zip(n.input[3:5], names, strict=True))
    return next_names


def _chosen(
    graph: onnx.GraphProto,
    arrays: Mapping[str, np.ndarray],
    buffers: Mapping[str, str],
    patterns: tuple[str, ...] | None,
) -> list[str]:
    read = {name: (op, place) for name, op, place in _reads(graph)}
    tensors = [t for t in graph.initializer if t.name in read and t.name not in buffers]
    if patterns is None:
        floats = [t for t in tensors if t.data_type in _FLOATS and not _is_mask(arrays[t.name])]
        return [t.name for t in floats if _is_learned(t, *read[t.name])]
    return select_trainable(patterns, {t.name: t.data_type in _FLOATS for t in tensors})


def _is_learned(t: onnx.TensorProto, op: str, place: int) -> bool:
    if place in _SETTING_OPERANDS.get(op, ()):
        return False
    size = int(np.prod(t.dims))
    return bool(t.dims) and (
        size > 1 or (size == 1 and (op in _OPS_WITH_SCALAR_WEIGHTS or op.endswith("Normalization")))
    )


def _is_mask(a: np.ndarray) -> bool:
    """Whether some element stands for minus infinity: no weight is that large."""
    return bool((~(np.abs(a) < ml_dtypes.finfo(a.dtype).max)).any())


def _reads(graph: onnx.GraphProto) -> Iterator[tuple[str, str, int]]:
    """(value read, type of the reading op, operand index), in this graph and its subgraphs."""
    for n in graph.node:
        yield from ((name, n.op_type, i) for i, name in enumerate(n.input) if name)
        for a in n.attribute:
            for g in (a.g, *a.graphs):
                yield from _reads(g)
