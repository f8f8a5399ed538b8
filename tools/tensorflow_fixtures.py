"""Write the small TensorFlow models that the tests read, with TensorFlow's own results beside them.

    python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu
    /tmp/tf/bin/python tools/tensorflow_fixtures.py tests/frontends/tensorflow/fixtures

Each fixture is a zip archive: the model as TensorFlow saved it, inputs and results as numpy arrays. Ingot is not needed
here, and TensorFlow not where they are read.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.core.protobuf import saved_model_pb2

RNG = np.random.default_rng(7)


def data(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return (np.round(RNG.uniform(low, high, shape) * 256) / 256).astype(np.float32)  # few bits: it packs well


def write(path: Path, files: Mapping[str, bytes], calls: list[tuple[dict, dict]]) -> None:
    """files: the model's. calls: inputs and results, by name."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
        for i, call in enumerate(calls):
            for kind, arrays in zip(("inputs", "outputs"), call, strict=True):
                buffer = io.BytesIO()
                np.savez(buffer, **arrays)
                at = zipfile.ZipInfo(f"calls/{i}/{kind}.npz", (2026, 1, 1, 0, 0, 0))
                archive.writestr(at, buffer.getvalue(), zipfile.ZIP_DEFLATED)
    print(path.name, path.stat().st_size)


def saved(module: tf.Module, signatures: Mapping[str, object] | None = None) -> dict[str, bytes]:
    """A SavedModel's files."""
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(module, "export"):
            module.export(folder, verbose=False)
        else:
            tf.saved_model.save(module, folder, signatures)
        keep = ("saved_model.pb", "variables")
        files = {p.relative_to(folder): p for p in sorted(Path(folder).rglob("*")) if p.is_file()}
        content = {f"model/{name}": p.read_bytes() for name, p in files.items() if name.parts[0] in keep}
    model = saved_model_pb2.SavedModel.FromString(content["model/saved_model.pb"])
    graph = model.meta_graphs[0].graph_def
    for node in (*graph.node, *(n for f in graph.library.function for n in f.node_def)):
        node.ClearField("experimental_debug_info")
    return content | {"model/saved_model.pb": model.SerializeToString()}


def called(
    files: Mapping[str, bytes], calls: list[dict], signature: str = "serving_default"
) -> list[tuple[dict, dict]]:
    """What TensorFlow gives for these inputs from the saved files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            to = Path(folder, name)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(content)
        fn = tf.saved_model.load(f"{folder}/model").signatures[signature]
        return [(c, {k: v.numpy() for k, v in fn(**{k: tf.constant(v) for k, v in c.items()}).items()}) for c in calls]


def perturbed(model: keras.Model) -> keras.Model:
    """Weights and statistics of norms that are not what a new layer has: results that depend on each."""
    for layer in model._flatten_layers() if hasattr(model, "_flatten_layers") else model.layers:
        for w in layer.weights:
            if w.name.endswith(("variance", "gamma")):
                w.assign(data(*w.shape, low=0.5, high=1.5))
            elif w.name.endswith(("mean", "beta", "bias")):
                w.assign(data(*w.shape, low=-0.3, high=0.3))
    return model


def cnn() -> keras.Model:
    x = inputs = keras.Input((None, None, 3), name="image")
    x = keras.layers.Conv2D(6, 3, strides=2, padding="same", use_bias=False)(x)
    x = keras.layers.ReLU(6.0)(keras.layers.BatchNormalization()(x))
    y = keras.layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x)
    y = keras.layers.BatchNormalization()(keras.layers.Conv2D(6, 1)(keras.layers.Activation("swish")(y)))
    x = keras.layers.Add()([x, y])
    x = keras.layers.Concatenate()([keras.layers.MaxPool2D(3, 2, "same")(x), keras.layers.AvgPool2D(3, 2, "same")(x)])
    x = keras.layers.Conv2DTranspose(5, 3, strides=2, padding="same")(x)
    x = keras.layers.Conv2D(4, 3, dilation_rate=2, padding="same", activation="relu")(keras.layers.ZeroPadding2D(1)(x))
    x = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x))
    return perturbed(keras.Model(inputs, x))


def rnn() -> keras.Model:
    x = inputs = keras.Input((None, 4), name="x")
    x = keras.layers.Bidirectional(keras.layers.LSTM(5, return_sequences=True))(x)
    x = keras.layers.GRU(6, return_sequences=True)(x)
    y = keras.layers.LSTM(3)(x)
    return perturbed(keras.Model(inputs, [x, y]))


def transformer() -> keras.Model:
    ids = keras.Input((None,), dtype="int32", name="ids")
    mask = keras.Input((None,), dtype="bool", name="mask")
    x = keras.layers.Embedding(23, 8)(ids)
    a = keras.layers.MultiHeadAttention(2, 4)(x, x, attention_mask=mask[:, None, :])
    x = keras.layers.LayerNormalization()(keras.layers.Add()([x, a]))
    h = keras.layers.Dense(8)(keras.layers.Dense(16, activation="gelu")(x))
    x = keras.layers.LayerNormalization()(keras.layers.Add()([x, h]))
    return perturbed(keras.Model([ids, mask], keras.layers.Softmax()(x)))


class Control(tf.Module):
    """Loops, branches, lists, and a variable that calls change."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(data(3, 3), name="weight")
        self.count = tf.Variable(0, name="count")
        self.total = tf.Variable(tf.zeros(3), name="total")

    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, "x"), tf.TensorSpec((), tf.int32, "n")])
    def loop(self, x: tf.Tensor, n: tf.Tensor) -> dict[str, tf.Tensor]:
        steps = tf.TensorArray(tf.float32, size=5, element_shape=(None, 3))
        for i in tf.range(5):
            x = tf.tanh(x @ self.weight + tf.cast(i, tf.float32))
            steps = steps.write(i, x)
        y, k = x, tf.constant(0)
        while k < n:
            y, k = y * 1.5 - 0.25, k + 1
        return {"steps": steps.stack(), "y": y, "k": k}

    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, "x")])
    def branch(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        if tf.reduce_sum(x) > 0:
            y = x @ self.weight
        else:
            y = x * 2.0
        z = tf.switch_case(tf.cast(x[0, 0] * 3.0, tf.int32), [lambda: y, lambda: y + 1.0, lambda: -y])
        grown = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=(3,))
        for i in range(4):
            grown = grown.write(i, z[0] * float(i))
        return {"z": z, "grown": grown.stack()}

    @tf.function(input_signature=[tf.TensorSpec((3,), tf.float32, "x")])
    def step(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        self.count.assign_add(1)
        self.total.assign(self.total * 0.5 + x)
        return {"mean": self.total / tf.cast(self.count, tf.float32)}


def first_version(resource: bool) -> tuple[dict[str, bytes], list[tuple[dict, dict]]]:
    """A SavedModel as TensorFlow 1 wrote it: variables that are references, or resources."""
    v1 = tf.compat.v1
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        w = v1.get_variable("w", initializer=data(4, 3), use_resource=resource)
        y = tf.nn.softmax(tf.matmul(x, w))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, f"{folder}/model", {"x": x}, {"y": y})
        files = {str(p.relative_to(folder)): p for p in Path(folder, "model").rglob("*") if p.is_file()}
        given = data(5, 4)
        return {k: p.read_bytes() for k, p in files.items()}, [({"x": given}, {"y": session.run(y, {x: given})})]


class Words(tf.Module):
    """Strings and a table before numbers."""

    def __init__(self) -> None:
        super().__init__()
        keys = tf.constant(["a", "b", "c"])
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2, 3], tf.int64)), 0
        )
        self.embedding = tf.Variable(data(4, 5), name="embedding")

    @tf.function(
        input_signature=[tf.TensorSpec((None, 2), tf.string, "text"), tf.TensorSpec((None, 5), tf.float32, "x")]
    )
    def embed(self, text: tf.Tensor, x: tf.Tensor) -> dict[str, tf.Tensor]:
        found = self.table.lookup(tf.strings.lower(text))
        return {"y": tf.reduce_sum(tf.gather(self.embedding, found), 1) + x, "twice": x * 2.0}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = saved(cnn())
    write(folder / "cnn.zip", files, called(files, [{"image": data(2, 11, 14, 3)}, {"image": data(1, 16, 16, 3)}]))
    files = saved(rnn())
    write(folder / "rnn.zip", files, called(files, [{"x": data(2, 7, 4)}, {"x": data(1, 3, 4)}]))
    files = saved(transformer())
    ids = [RNG.integers(0, 23, (2, n)).astype(np.int32) for n in (6, 9)]
    write(folder / "transformer.zip", files, called(files, [{"ids": i, "mask": i > 4} for i in ids]))
    module = Control()
    files = saved(module, {name: getattr(module, name) for name in ("loop", "branch", "step")})
    write(folder / "loop.zip", files, called(files, [{"x": data(2, 3), "n": np.int32(n)} for n in (0, 4)], "loop"))
    calls = [{"x": data(2, 3)}, {"x": -np.abs(data(2, 3))}, {"x": np.abs(data(4, 3)) + 0.5}]
    write(folder / "branch.zip", files, called(files, calls, "branch"))
    write(folder / "step.zip", files, called(files, [{"x": data(3)} for _ in range(4)], "step"))
    for kind, resource in (("references", False), ("resources", True)):
        write(folder / f"{kind}.zip", *first_version(resource))
    module = Words()
    files = saved(module, {"serving_default": module.embed})
    text = np.array([["A", "c"], ["b", "x"]], object)
    known = np.array([[1, 3], [2, 0]])
    calls = called(files, [{"text": text, "x": data(2, 5)}])
    calls[0][0]["text"] = known
    write(folder / "words.zip", files, calls)
    from tensorflow_ops import ops_graph

    write(folder / "ops.zip", *ops_graph(data))
    areas(folder)
    training(folder)
    ragged(folder)
    from tensorflow_empty import empty_graph

    write(folder / "empty.zip", *empty_graph(data))
    from tensorflow_open import open_graph

    write(folder / "open.zip", *open_graph(data))


def areas(folder: Path) -> None:
    from tensorflow_areas import Writers, areas_graph

    write(folder / "areas.zip", *areas_graph(data))
    module = Writers()
    files = saved(module, {name: getattr(module, name) for name in ("draws", "growing", "parts", "until")})
    write(folder / "growing.zip", files, called(files, [{"x": data(n, 3)} for n in (4, 2, 1)], "growing"))
    calls = [{"x": data(n, 3) + 0.5} for n in (4, 2, 1)]
    write(folder / "draws.zip", files, [])
    write(folder / "until.zip", files, called(files, calls, "until"))
    write(folder / "parts.zip", files, called(files, [{"x": data(3)} for _ in range(3)], "parts"))


def training(folder: Path) -> None:
    from tensorflow_training import Found, Step, training_graph

    write(folder / "training.zip", *training_graph(data))
    module = Step(data)
    files = saved(module, {"train": module.train})
    batches = [{"x": data(n, 6), "y": np.arange(n, dtype=np.int32) % 3} for n in (4, 4, 7)]
    write(folder / "train.zip", files, called(files, batches, "train"))
    found = Found()
    files = saved(found, {"sizes": found.sizes})
    calls = [{"x": data(m), "n": np.array(n, np.int32)} for m, n in ((5, 1), (5, 3), (8, 9), (2, 0))]
    write(folder / "sizes.zip", files, called(files, calls, "sizes"))


def ragged(folder: Path) -> None:
    from tensorflow_ragged import Ragged, calls

    module = Ragged(data)
    files = saved(module, {name: getattr(module, name) for name in ("bags", "rows", "levels")})
    for name, given in calls(data).items():
        write(folder / f"{name}.zip", files, called(files, given, name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
