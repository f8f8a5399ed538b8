"""Other implementations of a model to compare with, each framework's own: ONNX Runtime, PyTorch, LiteRT, XLA,
TensorFlow, Keras, torch.jit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.debug.comparison.foreign import Foreign, RefusedError
from ingot.debug.comparison.onnx_runtime import Run, session, with_outputs
from ingot.debug.feeds import Feeds
from ingot.debug.source import Source
from ingot.driver.open import import_torch, open_model, script_evaluator
from ingot.driver.recognize import LANGUAGE
from ingot.ir.node import Graph, Input
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

if TYPE_CHECKING:
    import torch

    from ingot.frontends.torch.model import Leaf


class MissingError(ImportModelError):
    """A framework that is not installed, or not for such a model."""


@dataclass(frozen=True)
class Reference:
    """`run(feeds)` gives the model's outputs in order, or raises RefusedError. `name` is who computes them."""

    name: str
    run: Run


def reference(source: Source) -> Reference:
    """The framework of the model. Raises MissingError, which says what to install, if it is missing."""
    if source.kind in LANGUAGE:
        raise MissingError("no other engine runs one chunk of a language model", fix="the interpreter is the reference")
    if source.kind not in _PACKAGES:
        raise MissingError("nothing else runs such a file", fix="the interpreter is the reference")
    package, extra = _PACKAGES[source.kind]
    if find_spec(package.partition(".")[0]) is None:
        raise MissingError(f"{package} is not installed, which would run the model", fix=f"pip install {extra}")
    return _REFERENCES[source.kind](source)


def _onnx_runtime(source: Source) -> Reference:
    import onnxruntime  # an extra

    if source.outputs is None:
        run = session(str(source.path))
    else:
        import onnx

        run = session(with_outputs(onnx.load(source.path), source.outputs).SerializeToString())
    return Reference(f"ONNX Runtime {onnxruntime.__version__}", lambda feeds: run({**feeds, **source.weights}))


def _litert(source: Source) -> Reference:
    """LiteRT with its reference kernels, which say what levels an op gives."""
    from ai_edge_litert import interpreter as litert  # an extra

    from ingot.frontends.tflite import import_tflite

    imported = import_tflite(source.path, dynamic=dict(source.dims) or None)
    _stateless(imported.state, "LiteRT")
    labels = [n.op.label for n in imported.graph.inputs if isinstance(n.op, Input)]
    resolver = litert.OpResolverType.BUILTIN_REF

    def run(feeds: Feeds) -> list[np.ndarray]:
        try:
            engine = litert.Interpreter(str(source.path), experimental_op_resolver_type=resolver)
            places = [d["index"] for d in engine.get_input_details()]
            for place, label in zip(places, labels, strict=True):
                engine.resize_tensor_input(place, feeds[label].shape)
            engine.allocate_tensors()
            for place, label in zip(places, labels, strict=True):
                engine.set_tensor(place, feeds[label])
            engine.invoke()
            return [engine.get_tensor(d["index"]) for d in engine.get_output_details()]
        except (RuntimeError, ValueError) as error:
            raise RefusedError(f"LiteRT cannot run the model: {error}") from error

    return Reference("LiteRT's reference kernels", run)


def _pytorch(source: Source) -> Reference:
    import torch
    from torch.utils import _pytree as pytree

    from ingot.frontends.torch import import_sized, load_exported

    program = load_exported(source.path)
    imported = import_sized(program, source.dynamic)
    module = program.module()
    adapter = imported.inputs
    tensors = dict(module.named_buffers()) | dict(module.named_parameters())
    state = [tensors[name] for name in imported.state]
    carriers = [n.op.label for n in imported.graph.inputs[-len(state) :] if isinstance(n.op, Input)] if state else []

    def run(feeds: Feeds) -> list[np.ndarray]:
        values = [_argument(leaf, feeds) for leaf in adapter.leaves]
        args, kwargs = pytree.tree_unflatten(values, adapter.spec)
        try:
            with torch.no_grad():
                for tensor, name in zip(state, carriers, strict=True):
                    tensor.copy_(torch.from_numpy(feeds[name]))
                leaves = pytree.tree_leaves(module(*args, **kwargs))
        except (RuntimeError, AssertionError) as error:  # the latter where the program's guards do not hold
            raise RefusedError(f"PyTorch cannot run the model: {error}") from error
        kinds = [kind for kind, _ in imported.outputs.leaves]
        results = [v for v, kind in zip(leaves, kinds, strict=True) if kind != "fixed"]
        return [_array(v).copy() for v in (*state, *results)]

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


def _stateless(state: object, name: str) -> None:
    if state:
        raise MissingError(f"the model keeps a state, which cannot be set in {name}")


def _chosen(graph: Graph, source: Source) -> list[int]:
    """The indices of the requested outputs among those of the whole model."""
    names = list(graph.output_names)
    return [names.index(name) for name in source.outputs] if source.outputs else list(range(len(names)))


def _foreign(
    name: str, kind: str, request: dict[str, Any], source: Source, indices: list[int] | None = None
) -> Reference:
    started = Foreign(kind, {"path": str(source.path.resolve()), **request}, str(source.path))

    def run(feeds: Feeds) -> list[np.ndarray]:
        try:
            results = started.run({**feeds, **source.weights})
        except RefusedError as error:
            raise RefusedError(f"{name} cannot run the model: {error}") from error
        return results if indices is None else [results[i] for i in indices]

    return Reference(name, run)


def _xla(source: Source) -> Reference:
    from ingot.frontends.stablehlo import import_stablehlo

    imported = import_stablehlo(source.path)
    # main's arguments in order, those that are given values among them
    request = {"arguments": [(leaf.name, leaf.kind == "complex") for leaf in imported.inputs]}
    return _foreign("XLA", "stablehlo", request, source, _chosen(imported.graph, source))


def _tensorflow(source: Source) -> Reference:
    from ingot.frontends.tensorflow.model import cut, read_program

    opened = open_model(source.path, source.request)
    _stateless(opened.state, "TensorFlow")
    program = cut(read_program(source.path, source.signature), source.inputs, source.outputs)
    if source.path.is_dir():
        whole_program = cut(read_program(source.path, source.signature), None, None)
        inside = [e.name for e in program.inputs if e not in whole_program.inputs]
        if inside := [*inside, *(e.name for e in program.outputs if e not in whole_program.outputs)]:
            raise MissingError(f"TensorFlow runs a whole signature, and {inside} are inside of one")
    ends = {k: [(e.name, e.tensor) for e in getattr(program, k)] for k in ("inputs", "outputs")}
    return _foreign("TensorFlow", "tensorflow", {"signature": program.signature, **ends}, source)


def _keras(source: Source) -> Reference:
    graph = open_model(source.path, replace(source.request, outputs=None, weights=None)).graph
    return _foreign("Keras", "keras", {}, source, _chosen(graph, source))


def _torchscript(source: Source) -> Reference:
    from torch.utils import _pytree as pytree

    evaluator, resolved = script_evaluator(source.path, source.request)
    imported = import_torch(evaluator, resolved.example_inputs, resolved.dynamic)
    paths = [evaluator.path_of(name) for name in imported.state]
    carriers = [n.op.label for n in imported.graph.inputs[-len(paths) :] if isinstance(n.op, Input)] if paths else []
    leaves = [(x.kind, x.value if x.kind == "fixed" else x.name) for x in imported.inputs.leaves]
    request = {
        "spec": pytree.treespec_dumps(imported.inputs.spec), "leaves": leaves,
        "state": list(zip(paths, carriers, strict=True)),
        "results": [kind != "fixed" for kind, _ in imported.outputs.leaves],
    }  # fmt: skip
    return _foreign("torch.jit", "torchscript", request, replace(source, weights={}))


# what runs a kind of model: the module that has to be there, what brings it
_PACKAGES = {
    "onnx": ("onnxruntime", "onnxruntime"),
    "torch": ("torch", "torch"),
    "tflite": ("ai_edge_litert", "ai-edge-litert"),
    "stablehlo": ("jaxlib", "jax"),
    "tensorflow": ("tensorflow", "tensorflow"),
    "keras": ("keras", "'ingot-compiler[keras]'"),
    "torchscript": ("torch", "torch"),
}
_REFERENCES: dict[str, Callable[[Source], Reference]] = {
    "onnx": _onnx_runtime, "torch": _pytorch, "tflite": _litert, "stablehlo": _xla, "tensorflow": _tensorflow,
    "keras": _keras, "torchscript": _torchscript,
}  # fmt: skip
