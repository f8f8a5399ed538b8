"""Small valid files of the formats beside ONNX, for tools/fuzz.py, and how each is read."""

from __future__ import annotations

import io
import json
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


def gguf() -> list[Files]:
    """A file with all types of metadata, and one for each format of blocks."""
    from ingot.frontends.gguf import FORMATS
    from tests.frontends.gguf import builder as b
    from tests.frontends.gguf.test_file import SCALARS

    keys = [b.key(f"k{kind}", kind, b.scalar(kind, value)) for kind, value in SCALARS]
    keys += [b.key(f"a{kind}", b.ARRAY, b.array(kind, [b.scalar(kind, value)] * 3)) for kind, value in SCALARS]
    keys.append(b.key("tokens", b.ARRAY, b.array(b.STRING, [b.text(t) for t in ("<s>", "a", "")])))
    keys.append(b.key("nested", b.ARRAY, b.array(b.ARRAY, [b.array(b.U8, []), b.array(b.STRING, [b.text("x")])])))
    keys.append(b.key("general.alignment", b.U32, b.scalar(b.U32, 32)))
    out = [{"model.gguf": b.of_tensors({"w": ("Q4_0", (2, 32), b.random_blocks("Q4_0", 2))}, keys)}]
    for format in FORMATS.values():
        name, columns = format.name, max(format.elements, 4)
        raw = b.random_blocks(name, 2 * columns // format.elements)
        tensors = {"w": (name, (2, columns), raw), "b": ("F32", (2,), b.random_blocks("F32", 2))}
        out.append({"model.gguf": b.of_tensors(tensors, keys[:2])})
    return out


def safetensors() -> list[Files]:
    """Folders of Hugging Face: floats, shards and quantized layers; each of their files is the one that is mutated."""
    import numpy as np

    from ingot.ir.types import f8e4m3fn
    from ingot.support import safetensors as format

    packed = {
        "l.qweight": np.arange(64, dtype=np.int32).reshape(8, 8), "l.qzeros": np.ones((2, 1), np.int32),
        "l.scales": np.ones((2, 8), np.float16), "l.g_idx": np.arange(64, dtype=np.int32) // 32,
    }  # fmt: skip
    floats = {"l.weight": np.ones((4, 8), f8e4m3fn.numpy), "l.weight_scale": np.ones((4, 1), np.float32)}
    plain = {"w": np.ones((4, 3), np.float16), "b": np.ones(3, np.float32)}
    cases: list[tuple[object, dict[str, dict[str, np.ndarray]]]] = [
        (None, {"model.safetensors": plain}),
        (None, {"1.safetensors": {"w": plain["w"]}, "2.safetensors": {"b": plain["b"]}}),
        ({"quant_method": "gptq", "bits": 4}, {"model.safetensors": packed}),
        ({"quant_method": "fp8", "weight_block_size": [4, 8]}, {"model.safetensors": floats}),
    ]
    out: list[Files] = []
    with tempfile.TemporaryDirectory() as folder:
        for quantization, files in cases:
            config = {"model_type": "llama"} | ({"quantization_config": quantization} if quantization else {})
            content = {"config.json": json.dumps(config).encode()}
            if len(files) > 1:
                index = {"weight_map": {name: file for file, arrays in files.items() for name in arrays}}
                content["model.safetensors.index.json"] = json.dumps(index).encode()
            for file, arrays in files.items():
                format.write(Path(folder, file), arrays)
                content[file] = Path(folder, file).read_bytes()
            out += [{first: content[first], **content} for first in content]
    return out


def mutated(data: bytes, mutate: Callable[[bytes], bytes]) -> bytes:
    """Changed bytes; or, half of the time, of an archive one of its members, so that it is still an archive, and of a
    safetensors file its header, behind its length."""
    whole = mutate(data)
    if data[8:9] == b"{" and len(whole) % 2 == 0:
        end = 8 + int.from_bytes(data[:8], "little")
        header = mutate(data[8:end])
        return len(header).to_bytes(8, "little") + header + data[end:]
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
    code: str, arguments: Sequence[str], what: str, where: str, *, stdin: bytes = b"", env: object = None
) -> bytes:
    """As `run_in_subprocess`, in a fork of this process, which has imported what the other would for seconds."""
    from ingot.support.errors import ImportModelError

    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as fed:
        fed.write(stdin)
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
    archive.run_in_subprocess = forked
    return archive.load(path)


def _import_keras(path: Path) -> object:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    from ingot.frontends.keras import model, program

    assert keras, program
    model.run_in_subprocess = forked
    return model.import_keras(path)


def _import_bytecode(path: Path) -> object:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo, stablehlo

    from ingot.frontends.stablehlo import model

    assert ir, (chlo, stablehlo)
    model.run_in_subprocess = forked
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


def _import_gguf(path: Path) -> object:
    """With all that is decoded of each tensor."""
    from ingot.frontends.gguf import GGUFFile, GGUFWeights

    file = GGUFFile(path)
    weights = GGUFWeights(file)
    for name, tensor in file.tensors.items():
        tensor.dequantized()
        weights.matrix(name)
    return file


def _import_safetensors(path: Path) -> object:
    """The folder around it, each weight as a value."""
    from ingot.frontends.huggingface import Folder, FolderWeights
    from ingot.ir.interp import interpret
    from ingot.ir.node import Graph
    from ingot.ir.types import dtype_of

    weights = FolderWeights(folder := Folder(path.parent))
    for name in weights.names:
        if name not in folder.tensors or dtype_of(folder.tensors[name]).is_float:
            interpret(Graph((), (weights.matrix(name),)), [])
    return weights


READERS: dict[str, tuple[Callable[[], list[Files]], Callable[[Path], object]]] = {
    "stablehlo": (stablehlo, _import_stablehlo),
    "bytecode": (bytecode, _import_bytecode),
    "tensorflow": (tensorflow, _import_tensorflow),
    "tflite": (tflite, _import_tflite),
    "torchscript": (torchscript, _import_torchscript),
    "keras": (keras, _import_keras),
    "gguf": (gguf, _import_gguf),
    "safetensors": (safetensors, _import_safetensors),
}


@cache
def corpus(kind: str) -> tuple[Files, ...]:
    return tuple(READERS[kind][0]())
