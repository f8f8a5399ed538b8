"""Other implementations of a model to compare with: ONNX Runtime for ONNX files, PyTorch for exported programs, LiteRT
for TFLite models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ingot.debug.feeds import Feeds
from ingot.debug.source import Source, read_torch
from ingot.ir.node import Input
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError

if TYPE_CHECKING:
    import onnx
    import torch

    from ingot.frontends.torch.model import Leaf

Run = Callable[[Feeds], list[np.ndarray]]


class RefusedError(InputError):
    """A framework cannot run its model on these inputs."""


@dataclass(frozen=True)
class Reference:
    """`run(feeds)` gives the model's outputs in order, or raises RefusedError. `name` is who computes them."""

    name: str
    run: Run


def reference(source: Source) -> Reference | None:
    """The model's own framework, where it is installed; None otherwise."""
    if source.kind == "torch":
        return _pytorch(source)
    if source.kind == "onnx":
        return _onnx_runtime(source)
    if source.kind == "tflite":
        return _litert(source)
    return None


def _onnx_runtime(source: Source) -> Reference | None:
    try:
        import onnxruntime  # an extra
    except ImportError:
        return None
    run = session(str(source.path))
    return Reference(f"ONNX Runtime {onnxruntime.__version__}", lambda feeds: run({**feeds, **source.weights}))


def session(model: str | bytes) -> Run:
    """ONNX Runtime on a file or a serialized model, without its graph optimizations: the plain meaning of the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what matters is in the raised error
    try:
        made = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own errors have no other base
        raise ImportModelError(f"ONNX Runtime refuses the model: {error}") from error
    names = [i.name for i in made.get_inputs()]

    def run(feeds: Feeds) -> list[np.ndarray]:
        try:
            results = made.run(None, {name: feeds[name] for name in names if name in feeds})
        except Exception as error:
            raise RefusedError(f"ONNX Runtime cannot run the model: {error}") from error
        return [np.asarray(out) for out in results]

    return run


def _litert(source: Source) -> Reference | None:
    """LiteRT with its reference kernels, which say what levels an op gives."""
    try:
        from ai_edge_litert import interpreter as litert  # an extra
    except ImportError:
        return None
    from ingot.frontends.tflite import import_tflite

    imported = import_tflite(source.path, dynamic=dict(source.dims) or None)
    if imported.state:
        return None  # what a variable holds cannot be set there
    labels = [n.op.label for n in imported.graph.inputs if isinstance(n.op, Input)]
    resolver = litert.OpResolverType.BUILTIN_REF

    def run(feeds: Feeds) -> list[np.ndarray]:
        try:
            made = litert.Interpreter(str(source.path), experimental_op_resolver_type=resolver)
            places = [d["index"] for d in made.get_input_details()]
            for place, label in zip(places, labels, strict=True):
                made.resize_tensor_input(place, feeds[label].shape)
            made.allocate_tensors()
            for place, label in zip(places, labels, strict=True):
                made.set_tensor(place, feeds[label])
            made.invoke()
            return [made.get_tensor(d["index"]) for d in made.get_output_details()]
        except (RuntimeError, ValueError) as error:
            raise RefusedError(f"LiteRT cannot run the model: {error}") from error

    return Reference("LiteRT's reference kernels", run)


def _pytorch(source: Source) -> Reference:
    import torch
    from torch.utils import _pytree as pytree

    program, imported = read_torch(source)
    module = program.module()
    adapter = imported.inputs
    held = dict(module.named_buffers()) | dict(module.named_parameters())
    kept = [held[name] for name in imported.state]
    carriers = [n.op.label for n in imported.graph.inputs[-len(kept) :] if isinstance(n.op, Input)] if kept else []

    def run(feeds: Feeds) -> list[np.ndarray]:
        values = [_argument(leaf, feeds) for leaf in adapter.leaves]
        args, kwargs = pytree.tree_unflatten(values, adapter.spec)
        try:
            with torch.no_grad():
                for tensor, name in zip(kept, carriers, strict=True):
                    tensor.copy_(torch.from_numpy(feeds[name]))
                leaves = pytree.tree_leaves(module(*args, **kwargs))
        except (RuntimeError, AssertionError) as error:  # the latter where the program's guards do not hold
            raise RefusedError(f"PyTorch cannot run the model: {error}") from error
        kinds = [kind for kind, _ in imported.outputs.leaves]
        results = [v for v, kind in zip(leaves, kinds, strict=True) if kind != "fixed"]
        return [_array(v).copy() for v in (*kept, *results)]

    return Reference(f"PyTorch {torch.__version__}", run)


def _argument(leaf: Leaf, feeds: Feeds) -> object:
    """What the model's forward takes for a leaf, from the graph's input."""
    import torch

    if leaf.kind == "fixed":
        return leaf.value
    array = feeds[leaf.name]
    if leaf.kind == "size":
        return int(array.shape[0])
    return float(array) if leaf.kind == "number" else torch.from_numpy(array)


def _array(value: torch.Tensor | float | int) -> np.ndarray:
    return np.asarray(value) if isinstance(value, int | float) else value.detach().numpy()


def with_all_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every value that a node of its main graph makes as an output, in the nodes' order."""
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    declared = {o.name: o for o in model.graph.output}
    del changed.graph.output[:]
    for name in (name for node in model.graph.node for name in node.output if name):
        changed.graph.output.append(declared.get(name) or onnx.helper.make_empty_tensor_value_info(name))
    return changed
