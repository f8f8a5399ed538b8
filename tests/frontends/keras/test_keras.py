"""Keras models, in memory and as files, against Keras itself; what is refused; hostile files."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")
h5py = pytest.importorskip("h5py")
jax = pytest.importorskip("jax")
if keras.backend.backend() != "jax":
    pytest.skip("Keras has another backend here", allow_module_level=True)

import ingot  # noqa: E402 - Keras settles its backend first
from ingot.driver.recognize import kind_of  # noqa: E402
from ingot.frontends.keras import config, import_keras, worker  # noqa: E402
from ingot.frontends.keras.model import graph_of  # noqa: E402
from ingot.ir.interp import interpret  # noqa: E402
from ingot.ir.node import Graph, Input  # noqa: E402
from ingot.support import safetensors  # noqa: E402
from ingot.support.errors import ImportModelError, InputError, UnsupportedOpError  # noqa: E402

L = keras.layers
RNG = np.random.default_rng(0)


def perturbed(model: Any) -> Any:
    """Variables that differ from where they start: of batch norms, which else do nothing."""
    for v in model.variables:
        if "seed" not in v.path:
            v.assign(np.asarray(v.value) * 1.1 + RNG.uniform(0.01, 0.1, v.shape).astype(v.dtype))
    return model


def image_net() -> Any:
    x = image = keras.Input((16, 16, 3), name="image")
    x = L.Rescaling(1 / 2, offset=-0.5)(x)
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(6, 3, padding="same")(x)))
    x = L.DepthwiseConv2D(3, strides=2)(x)
    x = L.GlobalAveragePooling2D()(L.SeparableConv2D(8, 3)(x))
    return perturbed(keras.Model(image, [L.Dense(5, name="logits")(x), L.Dropout(0.5, name="kept")(x)]))


def text_net() -> Any:
    ids, features = keras.Input((None,), dtype="int32", name="ids"), keras.Input((None, 4), name="more")
    h = L.Concatenate()([L.Embedding(50, 12)(ids), features])
    h = L.Bidirectional(L.LSTM(5, return_sequences=True))(h)
    h = L.LayerNormalization()(L.MultiHeadAttention(2, 4)(h, h))
    return keras.Model(
        {"ids": ids, "more": features}, L.GlobalMaxPooling1D(name="top")(L.GRU(3, return_sequences=True)(h))
    )


def read(path: Path, folder: Path, dynamic: Any = None) -> Graph:
    """As `import_keras` reads a file, in this process."""
    worker.main(path, folder, dynamic)
    form = json.loads((folder / "form.json").read_text())
    text, weights = (folder / "program.mlir").read_text(), safetensors.read(folder / "weights.safetensors")
    return graph_of(text, form["names"], form["shapes"], form["outputs"], form["bounds"], weights, str(path))


def agrees(graph: Graph, model: Any, inputs: list[np.ndarray], sizes: dict[str, int]) -> None:
    def called(first: Any, *others: Any) -> Any:
        return model([first, *others] if others else first)

    outputs = jax.jit(called)(*inputs)
    want = [np.asarray(y) for y in keras.tree.flatten(outputs)]
    assert all(w.std() > 1e-3 for w in want)
    for got, w in zip(interpret(graph.substitute(sizes), inputs), want, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-4, atol=1e-5)


def images(n: int) -> np.ndarray:
    return RNG.normal(size=(n, 16, 16, 3)).astype(np.float32)


def test_a_model_in_memory_with_any_batch() -> None:
    model = image_net()
    graph = import_keras(model)
    assert isinstance(graph.inputs[0].op, Input) and graph.inputs[0].op.label == "image"
    assert graph.output_names == tuple(model.output_names)
    for n in (1, 3):
        agrees(graph, model, [images(n)], {"batch": n})
    with pytest.raises(InputError, match="batch"):
        import_keras(model, dynamic=False)
    assert import_keras(model, dynamic={"batch": 2}).inputs[0].shape == (2, 16, 16, 3)
    with pytest.raises(InputError, match="expected inputs of"):
        import_keras(model, dynamic={"length": 2})


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_files(suffix: str, tmp_path: Path) -> None:
    model, path = image_net(), tmp_path / f"net{suffix}"
    model.save(path)
    assert kind_of(path) == "keras"
    agrees(read(path, tmp_path), model, [images(3)], {"batch": 3})


@pytest.mark.slow
def test_sizes_of_equal_names_are_equal(tmp_path: Path) -> None:
    model, path = text_net(), tmp_path / "net.keras"
    model.save(path)
    graph = read(path, tmp_path, {"ids": {1: "length"}, "more": {"1": "length"}, "length": (2, 64)})
    assert graph.bounds == (("length", 2, 64),) and graph.output_names == ("top",)
    for n, length in ((2, 7), (1, 3)):
        inputs = [RNG.integers(0, 50, (n, length)).astype(np.int32), RNG.normal(size=(n, length, 4)).astype(np.float32)]
        agrees(graph, model, inputs, {"batch": n, "length": length})


def test_layers_that_draw_do_nothing() -> None:
    x = images(2)
    graph = import_keras(keras.Sequential([keras.Input((16, 16, 3)), L.RandomContrast(0.9), L.RandomFlip()]))
    np.testing.assert_array_equal(interpret(graph.substitute({"batch": 2}), [x])[0], x)


def test_a_model_without_declared_inputs_takes_examples() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = L.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x) * 2

    model, x = Own(), RNG.normal(size=(4, 6)).astype(np.float32)
    with pytest.raises(ImportModelError, match="declares no inputs"):
        import_keras(model)
    graph = import_keras(model, example_inputs=(x,))
    agrees(graph, model, [x], {"batch": 4})


# --- old configurations


def old_file(path: Path) -> Any:
    """A model as Keras 2 wrote it, and the same in Keras 3."""
    layers = [keras.Input((9, 9, 3)), L.DepthwiseConv2D(3, name="deep"), L.Flatten(name="flat")]
    model = perturbed(keras.Sequential(layers))
    model.save(path)
    policy = {"class_name": "Policy", "config": {"name": "float32"}}
    deep = {"name": "deep", "kernel_size": [3, 3], "strides": [1, 1], "padding": "valid", "groups": 1, "dtype": policy,
            "data_format": "channels_last", "depth_multiplier": 1, "use_bias": True, "activation": None}  # fmt: skip
    described = [
        {"class_name": "InputLayer", "config": {"batch_input_shape": [None, 9, 9, 3], "dtype": "float32",
                                                "sparse": False, "ragged": False, "name": "image/raw"}},
        {"class_name": "DepthwiseConv2D", "config": deep},
        {"class_name": "Flatten", "config": {"name": "flat", "dtype": "float32", "data_format": "channels_last"}},
    ]  # fmt: skip
    with h5py.File(path, "r+") as file:
        layer_config = {"class_name": "Sequential", "config": {"name": "old", "layers": described}}
        file.attrs["model_config"] = json.dumps(layer_config)
        file.attrs["keras_version"] = "2.11.0"
    return model


def test_an_old_configuration(tmp_path: Path) -> None:
    model = old_file(tmp_path / "old.h5")
    graph = read(tmp_path / "old.h5", tmp_path)
    assert isinstance(graph.inputs[0].op, Input) and graph.inputs[0].op.label == "image_raw"
    agrees(graph, model, [RNG.normal(size=(2, 9, 9, 3)).astype(np.float32)], {"batch": 2})


def test_an_old_configuration_with_classes_of_its_own(tmp_path: Path) -> None:
    old_file(tmp_path / "old.h5")
    with h5py.File(tmp_path / "old.h5", "r+") as file:
        described = file.attrs["model_config"].replace('"Flatten"', '"SqueezeLayer"')
        file.attrs["model_config"] = described
    with pytest.raises(UnsupportedOpError, match=r"SqueezeLayer at layer flat .*its code is not in the file"):
        read(tmp_path / "old.h5", tmp_path)


def test_only_arguments_that_say_nothing_are_taken_out() -> None:
    inner = {"units": 3, "time_major": True, "old": None, "groups": 1, "trainable": False, "go_backwards": False}
    node = {"class_name": "LSTM", "config": inner}
    config.modernized({"layers": [node]}, L, "")
    assert inner == {"units": 3, "time_major": True, "trainable": False, "go_backwards": False}


# --- refusals


def test_refused_layers_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "net.keras"
    keras.Sequential([keras.Input((4,)), L.Lambda(lambda x: x * 2, name="mine"), L.Dense(2)]).save(path)
    with zipfile.ZipFile(path) as archive:
        described, rest = json.loads(archive.read("config.json")), archive.read("model.weights.h5")
    described["config"]["layers"] += [
        {"module": "keras.layers", "class_name": "TextVectorization", "config": {"name": "words"}},
        {"module": "os", "class_name": "system", "config": "touch /tmp/never"},
        {"module": "keras.utils", "class_name": "get_file", "config": {"origin": "http://example.org"}},
        {"module": "keras.layers", "class_name": "Dense", "config": {}, "registered_name": "shop>Own"},
        {"module": "builtins", "class_name": "exec", "config": "1"},
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(described))
        archive.writestr("model.weights.h5", rest)
    with pytest.raises(UnsupportedOpError) as e:
        read(path, tmp_path)
    named = {op.name for op in e.value.ops}
    assert {"Lambda", "TextVectorization", "system", "get_file", "Dense", "exec"} <= named
    assert "layer mine" in str(e.value) and not (tmp_path / "program.mlir").exists()


def archive_with(path: Path, weights: bytes, names: tuple[str, ...] = ()) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", json.dumps({"class_name": "Sequential", "config": {"layers": []}}))
        archive.writestr("model.weights.h5", weights)
        for name in names:
            archive.writestr(name, b"x")
    return path


def hdf5(path: Path, write: Callable[[Any], object]) -> bytes:
    with h5py.File(path, "w") as file:
        write(file)
    return path.read_bytes()


def test_hostile_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    makers: dict[str, Callable[[Any], object]] = {
        "is a link": lambda f: f.__setitem__("a", h5py.ExternalLink(str(secret), "/x")),
        "reads another file": lambda f: f.create_dataset("a", (64,), "u1", external=[(str(secret), 0, 64)]),
        "does not hold": lambda f: f.create_dataset("a", (1 << 40,), "u1", chunks=(1 << 10,)),
    }
    for result, maker in makers.items():
        path = archive_with(tmp_path / "net.keras", hdf5(tmp_path / "w.h5", maker))
        with pytest.raises(ImportModelError, match=result):
            read(path, tmp_path)
    with pytest.raises(ImportModelError, match="outside"):
        read(archive_with(tmp_path / "net.keras", b"", ("../x",)), tmp_path)
    content = archive_with(tmp_path / "net.keras", b"\x89HDF\r\n").read_bytes()
    (tmp_path / "net.keras").write_bytes(content[: len(content) // 2])
    with pytest.raises(ImportModelError, match="not a readable Keras file"):
        read(tmp_path / "net.keras", tmp_path)
    old = tmp_path / "weights.h5"
    hdf5(old, lambda f: f.create_dataset("w", (3,), "f4"))
    with pytest.raises(ImportModelError, match="weights without a model"):
        read(old, tmp_path)


# --- a process of its own


@pytest.mark.slow
def test_a_file_is_read_in_a_process_of_its_own(tmp_path: Path) -> None:
    model, path = image_net(), tmp_path / "net.keras"
    model.save(path)
    x = images(3)
    for m in (ingot.compile(path), ingot.compile(model)):
        for got, want in zip(m(image=x), jax.jit(model)(x), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)
    keras.Sequential([keras.Input((4,)), L.Lambda(lambda x: x * 2)]).save(path)
    with pytest.raises(UnsupportedOpError, match="Lambda"):
        ingot.compile(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2"])
def test_applications(name: str) -> None:
    make = getattr(keras.applications, name)
    model = perturbed(make(weights=None, input_shape=(64, 64, 3), classifier_activation=None, classes=10))
    x = RNG.normal(size=(2, 64, 64, 3)).astype(np.float32)
    got, want = ingot.compile(model, cache=False)(x), np.asarray(jax.jit(model)(x))
    assert want.std() > 1e-3
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
