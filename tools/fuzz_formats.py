"""Small valid files of the formats beside ONNX, for tools/fuzz.py, and how each is read."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "frontends" / "tensorflow" / "fixtures"
Files = dict[str, bytes]  # of one model, by their names in its folder; the first is the one that is mutated


def stablehlo() -> list[Files]:
    """Programs of one CORE op."""
    from ingot import ops
    from ingot.exporters.stablehlo import emit
    from ingot.frontends.stablehlo.printer import show
    from ingot.ir.node import Graph, Input, Op
    from ingot.ir.types import TensorType, dtype_of

    assert ops  # they register themselves
    out: list[Files] = []
    for _, cls in sorted(Op.REGISTRY.items()):
        if not cls.__module__.startswith("ingot.ops.core"):
            continue
        for op, arrays in cls.samples():
            inputs = tuple(Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays))
            text = show(emit(Graph(inputs, op(*inputs).results)).module).encode()
            if len(text) < 1 << 14:
                out.append({"model.mlir": text})
            break
    return out


def bytecode() -> list[Files]:
    """Portable artifacts of the same programs."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo as dialect

    out: list[Files] = []
    for files in stablehlo():
        with ir.Context() as context:
            dialect.register_dialect(context)
            text = files["model.mlir"].decode()
            try:
                data = dialect.serialize_portable_artifact_str(text, dialect.get_current_version())
            except ValueError:  # of another dialect, or of a later version
                continue
            out.append({"model.mlirbc": data})
    return out


def tensorflow() -> list[Files]:
    """The fixtures of TensorFlow's tests."""
    out: list[Files] = []
    for path in sorted(FIXTURES.glob("*.zip")):
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.startswith("calls/")}
        for first in files:
            if first.endswith((".pb", ".index")):
                out.append({first: files[first], **files})
    return out


def tflite() -> list[Files]:
    """Models of one operator, those of its tests."""
    from tests.frontends.tflite.builder import one_op
    from tests.frontends.tflite.rows.test_ops import CASES, result_types

    return [
        {"model.tflite": one_op(name, operands, result_types(name, operands, *(count or (1,))), options, **values)}
        for name, operands, options, values, *count in CASES
    ]


def torchscript() -> list[Files]:
    """Archives of scripted modules."""
    import torch

    from tests.frontends.torch.script.test_script import Branches, Counter, Lists, OnValues

    out: list[Files] = []
    for net in (Branches(), Counter(), Lists(), OnValues()):
        buffer = io.BytesIO()
        torch.jit.save(torch.jit.script(net.eval()), buffer)
        out.append({"model.pt": buffer.getvalue()})
    return out


_KERAS = """
import sys, keras
x = keras.Input((8, 8, 2))
y = keras.layers.BatchNormalization()(keras.layers.Conv2D(3, 3)(x))
model = keras.Model(x, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(y)))
for path in sys.argv[1:]:
    model.save(path)
"""


def keras() -> list[Files]:
    """A file of each kind that Keras writes; written elsewhere, as what JAX has run in cannot be forked."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("model.keras", "model.h5")]
        env = os.environ | {"KERAS_BACKEND": "jax"}
        subprocess.run([sys.executable, "-c", _KERAS, *map(str, paths)], env=env, check=True, capture_output=True)
        return [{path.name: path.read_bytes()} for path in paths]


def mutated(data: bytes, mutate: Callable[[bytes], bytes]) -> bytes:
    """Changed bytes; or, of an archive half of the time, of one of its members, so that it is still an archive."""
    whole = mutate(data)
    if not data.startswith(b"PK") or len(whole) % 2:
        return whole
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        names = old.namelist()
        chosen = names[sum(whole) % len(names)]
        for name in names:
            content = old.read(name)
            new.writestr(name, mutate(content) if name == chosen else content)
    return buffer.getvalue()


def forked(
    code: str, arguments: Sequence[str], what: str, where: str, *, given: bytes = b"", env: object = None
) -> bytes:
    """As `run_apart`, in a fork of this process, which has imported what the other would for seconds."""
    from ingot.support.errors import ImportModelError

    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as fed:
        fed.write(given)
        fed.seek(0)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.dup2(fed.fileno(), 0)
                os.dup2(told.fileno(), 1)
                sys.argv, sys.stdin, sys.stdout = ["-c", *arguments], open(0), open(1, "w")  # noqa: SIM115
                exec(code, {})
                sys.stdout.flush()
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise ImportModelError(f"{what}: status {status}", where=where)
        told.seek(0)
        return told.read()


def _import_torchscript(path: Path) -> object:
    import torch

    from ingot.frontends.torch.script import archive, extract

    assert torch, extract
    archive.run_apart = forked
    return archive.load(path)


def _import_keras(path: Path) -> object:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    from ingot.frontends.keras import model, program

    assert keras, program
    model.run_apart = forked
    return model.import_keras(path)


def _import_bytecode(path: Path) -> object:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo, stablehlo

    from ingot.frontends.stablehlo import model

    assert ir, (chlo, stablehlo)
    model.run_apart = forked
    return model.import_stablehlo(path)


def _import_stablehlo(path: Path) -> object:
    from ingot.frontends.stablehlo import import_stablehlo

    return import_stablehlo(path)


def _import_tensorflow(path: Path) -> object:
    from ingot.frontends.tensorflow import import_tensorflow

    whole = next((folder for folder in path.parents if (folder / "saved_model.pb").exists()), None)
    return import_tensorflow(whole or path)


def _import_tflite(path: Path) -> object:
    from ingot.frontends.tflite import import_tflite

    return import_tflite(path)


READERS: dict[str, tuple[Callable[[], list[Files]], Callable[[Path], object]]] = {
    "stablehlo": (stablehlo, _import_stablehlo),
    "bytecode": (bytecode, _import_bytecode),
    "tensorflow": (tensorflow, _import_tensorflow),
    "tflite": (tflite, _import_tflite),
    "torchscript": (torchscript, _import_torchscript),
    "keras": (keras, _import_keras),
}


@cache
def corpus(kind: str) -> tuple[Files, ...]:
    return tuple(READERS[kind][0]())
