"""A framework's own runtime in a process of its own: XLA, TensorFlow, Keras or TorchScript on a model's file.

    start(kind, request)  ->  [ python -m ...comparison.foreign FOLDER: loads the model, runs it again and again ]
    run(arrays)           ->  FOLDER/in.safetensors  ->  FOLDER/out.safetensors

Their settings (64 bits in JAX, Keras's backend) are settled once a process, TensorFlow's libraries and others' do not
always bear each other, and an archive of TorchScript holds code: its process has bounded memory and time.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingot.support import safetensors
from ingot.support.errors import ImportModelError, InputError

_TIMEOUT_SECONDS = 600
_ADDRESS_SPACE_BYTES = 16 << 30  # of addresses, for what is code
Arrays = Mapping[str, np.ndarray]
Loaded = Callable[[Arrays], Sequence[Any]]


class RefusedError(InputError):
    """A framework cannot run its model on these inputs."""


class Foreign:
    """The process with the model loaded. It ends with this object."""

    def __init__(self, kind: str, request: Mapping[str, Any], where: str) -> None:
        """Raises ImportModelError where the framework does not load the model."""
        self._where = where
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)
        (self._folder / "request.json").write_text(json.dumps({"kind": kind, **request}))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "3"}
        env |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
        # -P: what lies in the working folder is not imported
        command = [sys.executable, "-P", "-m", "ingot.debug.comparison.foreign", self._temporary.name]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)
        weakref.finalize(self, _end, self._process, self._temporary)
        try:
            self._answer()
        except RefusedError as e:
            raise ImportModelError(str(e), where=where) from e

    def run(self, arrays: Arrays) -> list[np.ndarray]:
        """The results in order. Raises RefusedError."""
        safetensors.write(self._folder / "in.safetensors", dict(arrays))
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"run\n")
            self._process.stdin.flush()
        except OSError as e:
            raise RefusedError("the framework's process has ended", where=self._where) from e
        self._answer()
        results = safetensors.read(self._folder / "out.safetensors")
        return [np.array(results[str(i)]) for i in range(len(results))]

    def _answer(self) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT_SECONDS)
        text = self._process.stdout.readline().decode() if ready else f'"no answer within {_TIMEOUT_SECONDS} s"'
        error = json.loads(text) if text else f"its process ended with exit code {self._process.wait()}"
        if error is not None:
            raise RefusedError(error)


def _end(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    process.kill()
    process.wait()
    folder.cleanup()


# --- in the process


def compile_stablehlo(data: bytes, arrays: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """(the executable of XLA's CPU client for a program and arrays of these sizes, its device). The classes of jaxlib
    used here are private: written for jaxlib 0.10."""
    import jax
    from jax._src.interpreters import mlir
    from jaxlib import _jax  # type: ignore[attr-defined]
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func
    from jaxlib.mlir.dialects import stablehlo as hlo

    jax.config.update("jax_enable_x64", True)
    device = jax.devices("cpu")[0]
    # a new main, of static types, calls that of the file
    with mlir.make_ir_context() as context, ir.Location.unknown():
        module = hlo.deserialize_portable_artifact(context, data) if data[:3] == b"ML\xef" else ir.Module.parse(data)
        functions: list[Any] = list(module.body.operations)
        (main,) = [f for f in functions if f.attributes["sym_name"].value == "main"]
        old = main.type
        elements = [ir.RankedTensorType(t).element_type for t in old.inputs]
        types = [ir.RankedTensorType.get(a.shape, e) for a, e in zip(arrays, elements, strict=True)]
        main.attributes["sym_name"] = ir.StringAttr.get("_main")
        main.attributes["sym_visibility"] = ir.StringAttr.get("private")
        with ir.InsertionPoint(module.body):
            outer = func.FuncOp("main", ir.FunctionType.get(types, old.results))
        outer.attributes["sym_visibility"] = ir.StringAttr.get("public")
        with ir.InsertionPoint(outer.add_entry_block()):
            operands = [hlo.ConvertOp(t, x).result for t, x in zip(old.inputs, outer.arguments, strict=True)]
            func.ReturnOp(func.CallOp(old.results, ir.FlatSymbolRefAttr.get("_main"), operands).results)
        code = mlir.module_to_bytecode(module)
    code = _jax.mlir.refine_polymorphic_shapes(code, enable_shape_assertions=True, validate_static_shapes=True)
    return device.client.compile_and_load(code, _jax.DeviceList((device,)), _jax.CompileOptions()), device


def _stablehlo(request: Mapping[str, Any]) -> Loaded:
    import jax

    data = Path(request["path"]).read_bytes()

    def run(arrays: Arrays) -> Sequence[Any]:
        operands = [_complex(arrays[name]) if is_complex else arrays[name] for name, is_complex in request["arguments"]]
        executable, device = compile_stablehlo(data, operands)
        results = executable.execute([jax.device_put(np.ascontiguousarray(x), device) for x in operands])
        return [np.stack([np.real(r), np.imag(r)], -1) if r.dtype.kind == "c" else r for r in map(np.asarray, results)]

    return run


def _complex(pairs: np.ndarray) -> np.ndarray:
    return pairs.view(np.result_type(pairs.dtype, np.complex64))[..., 0]


def _tensorflow(request: Mapping[str, Any]) -> Loaded:
    import tensorflow as tf

    path, inputs, outputs = request["path"], request["inputs"], request["outputs"]
    if os.path.isdir(path):
        loaded = tf.saved_model.load(path)  # its variables last as long as it does
        signed = loaded.signatures[request["signature"]]

        def call(arrays: Arrays) -> Sequence[Any]:
            results = (loaded and signed)(**{name: tf.constant(arrays[name]) for name, _ in inputs})
            return [results[name].numpy() for name, _ in outputs]

        return call
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(Path(path).read_bytes())
    function = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
    pruned = function.prune([tensor for _, tensor in inputs], [tensor for _, tensor in outputs])
    return lambda arrays: [y.numpy() for y in pruned(*(tf.constant(arrays[name]) for name, _ in inputs))]


def _keras(request: Mapping[str, Any]) -> Loaded:
    import keras

    from ingot.frontends.keras.worker import load

    with tempfile.TemporaryDirectory() as folder:
        model = load(Path(request["path"]), Path(folder))
    names = [str(t.name) for t in model.inputs]

    def run(arrays: Arrays) -> Sequence[Any]:
        inputs = [arrays[name] for name in names]
        return [
            np.asarray(y) for y in keras.tree.flatten(model(inputs[0] if len(inputs) == 1 else inputs, training=False))
        ]

    return run


def _torchscript(request: Mapping[str, Any]) -> Loaded:
    import torch
    from torch.utils import _pytree as pytree

    from ingot.frontends.torch.convert import to_numpy, to_torch

    module = torch.jit.load(request["path"], map_location="cpu")
    spec = pytree.treespec_loads(request["spec"])

    def value(leaf: Sequence[Any], arrays: Arrays) -> Any:
        kind, payload = leaf
        if kind == "fixed":
            return payload
        array = arrays[payload]
        return to_torch(array) if kind == "tensor" else array.shape[0] if kind == "size" else float(array)

    def run(arrays: Arrays) -> Sequence[Any]:
        state = [(*_owner(module, path), name) for path, name in request["state"]]
        with torch.no_grad():
            for owner, attribute, name in state:
                setattr(owner, attribute, to_torch(arrays[name]))
            args, kwargs = pytree.tree_unflatten([value(leaf, arrays) for leaf in request["leaves"]], spec)
            results = pytree.tree_leaves(module(*args, **kwargs))
        results = [r for r, is_result in zip(results, request["results"], strict=True) if is_result]
        values = (*(getattr(owner, attribute) for owner, attribute, _ in state), *results)
        return [to_numpy(r.detach()) if isinstance(r, torch.Tensor) else np.asarray(r) for r in values]

    return run


def _owner(module: Any, path: str) -> tuple[Any, str]:
    *owners, last = path.split(".")
    for name in owners:
        module = getattr(module, name)
    return module, last


_KINDS = {"stablehlo": _stablehlo, "tensorflow": _tensorflow, "keras": _keras, "torchscript": _torchscript}


def main(folder: Path) -> None:
    # whatever frameworks print goes to stderr: answers have stdout for themselves
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        request = json.loads((folder / "request.json").read_text())
        _bounded(request["kind"] == "torchscript")
        loaded: list[Loaded] = []
        _report(lambda: loaded.append(_KINDS[request["kind"]](request)), answers)
        for _ in sys.stdin if loaded else ():
            _report(lambda: _answer_once(loaded[0], folder), answers)


def _answer_once(run: Loaded, folder: Path) -> None:
    arrays = {name: np.array(x) for name, x in safetensors.read(folder / "in.safetensors").items()}
    results = {str(i): np.asarray(y) for i, y in enumerate(run(arrays))}
    safetensors.write(folder / "out.safetensors", results)


def _report(work: Callable[[], Any], answers: Any) -> None:
    """The answer is null, or what went wrong."""
    error = None
    try:
        work()
    except Exception as e:  # frameworks' own are of many kinds; the caller is told
        error = " ".join(f"{type(e).__name__}: {e}".split())[:1000]
    print(json.dumps(error), file=answers, flush=True)


def _bounded(memory: bool) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (_TIMEOUT_SECONDS, _TIMEOUT_SECONDS))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
