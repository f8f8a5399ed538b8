"""Whole models of TensorFlow beside Ingot, on demand: they are too large to keep.

    /tmp/tf/bin/python tools/tensorflow_models.py write FOLDER     where TensorFlow is installed
    python tools/tensorflow_models.py check FOLDER                 where Ingot is
    /tmp/tf/bin/python tools/tensorflow_models.py speed FOLDER     where both are: median times of calls in turn

Weights are random, statistics and biases of norms perturbed, results logits: a reference whose standard deviation is
below 1e-3 would prove nothing and is refused.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_LEAST_DEVIATION = 1e-3


def _models() -> Iterator[tuple[str, Callable[[], Any], list[dict[str, np.ndarray]]]]:
    """Name, how it is built, inputs."""
    from keras import Input, Model, applications, layers

    rng = np.random.default_rng(3)

    def images(n: int, size: int) -> dict[str, np.ndarray]:
        return {"image": rng.standard_normal((n, size, size, 3)).astype(np.float32)}

    def application(name: str, size: int) -> Model:
        inputs = Input((size, size, 3), name="image")
        options = {"weights": None, "classifier_activation": None, "input_tensor": inputs}
        return getattr(applications, name)(**options)

    for name, size in (
        ("MobileNetV2", 224), ("ResNet50", 224), ("EfficientNetB0", 224), ("DenseNet121", 224),
        ("MobileNetV3Small", 224), ("InceptionV3", 299), ("Xception", 299), ("NASNetMobile", 224),
        ("ConvNeXtTiny", 224), ("EfficientNetV2B0", 224), ("VGG16", 224), ("ResNet50V2", 224),
    ):  # fmt: skip
        yield name, lambda name=name, size=size: application(name, size), [images(1, size), images(2, size)]

    def bert() -> Model:
        ids, mask = Input((None,), dtype="int32", name="ids"), Input((None,), dtype="bool", name="mask")
        x = layers.Embedding(1000, 128)(ids)
        for _ in range(4):
            a = layers.MultiHeadAttention(4, 32)(x, x, attention_mask=mask[:, None, :])
            x = layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, a]))
            h = layers.Dense(128)(layers.Dense(512, activation="gelu")(x))
            x = layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, h]))
        return Model([ids, mask], layers.Dense(16)(x))

    def tokens(batch: int, length: int) -> dict[str, np.ndarray]:
        ids = rng.integers(0, 1000, (batch, length)).astype(np.int32)
        return {"ids": ids, "mask": np.arange(length)[None] < rng.integers(length // 2, length, (batch, 1))}

    yield "bert", bert, [tokens(1, 33), tokens(3, 17)]

    def lstm() -> Model:
        x = inputs = Input((None, 40), name="frames")
        x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
        return Model(inputs, layers.Dense(30)(layers.LSTM(64)(x)))

    yield "lstm", lstm, [{"frames": rng.standard_normal((b, n, 40)).astype(np.float32)} for b, n in ((1, 50), (4, 21))]


def _perturb(model: Any) -> None:
    rng = np.random.default_rng(11)
    for layer in model._flatten_layers():
        for w in layer._trainable_variables + layer._non_trainable_variables:
            if w.dtype != "float32":
                continue
            if w.name in ("gamma", "moving_variance"):
                w.assign(rng.uniform(0.6, 1.4, w.shape))
            elif w.name in ("beta", "moving_mean", "bias"):
                w.assign(rng.uniform(-0.2, 0.2, w.shape))


def write(folder: Path) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    for name, build, calls in _models():
        if (folder / name / "inputs0.npz").exists():
            continue
        model = build()
        _perturb(model)
        model.export(str(folder / name), verbose=False)
        run = tf.saved_model.load(str(folder / name)).signatures["serving_default"]
        for i, call in enumerate(calls):
            outputs = {k: v.numpy() for k, v in run(**{k: tf.constant(v) for k, v in call.items()}).items()}
            for key, value in outputs.items():
                if np.std(value) < _LEAST_DEVIATION:
                    raise SystemExit(f"{name}: {key} is almost constant")
            np.savez(folder / name / f"inputs{i}.npz", **call)
            np.savez(folder / name / f"outputs{i}.npz", **outputs)
        print(name, "written", flush=True)


def check(folder: Path) -> None:
    import ingot
    from ingot.frontends.tensorflow import import_tensorflow

    for path in sorted(p for p in folder.iterdir() if (p / "saved_model.pb").exists()):
        start = time.perf_counter()
        try:
            graph = import_tensorflow(path).graph
            read = time.perf_counter() - start
            compiled = ingot.compile(path)
        except ingot.IngotError as e:
            print(f"{path.name}: {e}", flush=True)
            continue
        worst = 0.0
        for call in sorted(path.glob("inputs*.npz")):
            expected = np.load(call.with_name(call.name.replace("inputs", "outputs")))
            results = compiled(**dict(np.load(call)))
            results = results if isinstance(results, tuple) else (results,)
            for spec, got in zip(compiled.outputs, results, strict=True):
                scale = np.abs(expected[spec.name]).max()
                worst = max(worst, float(np.abs(got - expected[spec.name]).max() / scale))
        nodes, whole = len(graph.nodes()), time.perf_counter() - start
        times = f"read in {read:.2f} s, with compiling {whole:.1f} s"
        print(f"{path.name}: {nodes} nodes, {times}, error {worst:.1e}", flush=True)
    assert "tensorflow" not in sys.modules


def speed(folder: Path) -> None:
    """Both on two threads; processor time too, as the host may have other work."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    import ingot

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    for path in sorted(p for p in folder.iterdir() if (p / "saved_model.pb").exists()):
        inputs = dict(np.load(path / "inputs0.npz"))
        compiled = ingot.compile(path, threads=2)
        run = tf.saved_model.load(str(path)).signatures["serving_default"]
        tensors = {k: tf.constant(v) for k, v in inputs.items()}
        times: list[list[tuple[float, float]]] = [[], []]
        for turn in range(2 * 30):
            start = time.perf_counter(), time.process_time()
            if turn % 2:
                [v.numpy() for v in run(**tensors).values()]
            else:
                compiled(**inputs)
            times[turn % 2].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        (wall, cpu), (others, their_cpu) = (np.median(t[5:], axis=0) * 1e3 for t in times)
        told = f"ingot {wall:.2f} ms, tensorflow {others:.2f} ms: {others / wall:.2f}x"
        print(f"{path.name}: {told}, of processor time {their_cpu / cpu:.2f}x", flush=True)


if __name__ == "__main__":
    {"write": write, "check": check, "speed": speed}[sys.argv[1]](Path(sys.argv[2]))
