"""Train a small convolutional network on scikit-learn's handwritten digits with numpy and write it as ONNX.

    python examples/digits.py digits.onnx

8x8 images -> conv 3x3, relu -> conv 3x3, relu -> max pool -> two dense layers: 50,000 weights, a few seconds. Only
numpy, scikit-learn and onnx are needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CHANNELS, HIDDEN, CLASSES, SIDE = (16, 32), 96, 10, 8
Weights = dict[str, np.ndarray]
Gradient = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Data:
    """Images as f32[n, 1, 8, 8] in [0, 1] and labels as integers."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load() -> Data:
    """1797 real digits, a quarter of them kept for testing; the split is fixed."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, SIDE, SIDE) / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    return Data(train_x, train_y, test_x, test_y)


def initial(random: np.random.Generator) -> Weights:
    """He initialization (arXiv 1502.01852)."""
    dense = CHANNELS[1] * (SIDE // 2) ** 2

    def he(*shape: int) -> np.ndarray:
        fan_in = int(np.prod(shape[1:]))
        return (random.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)

    weights = {
        "conv1": he(CHANNELS[0], 1, 3, 3),
        "conv2": he(CHANNELS[1], CHANNELS[0], 3, 3),
        "dense1": he(HIDDEN, dense),
        "dense2": he(CLASSES, HIDDEN),
    }
    return weights | {f"{k}_bias": np.zeros(w.shape[0], np.float32) for k, w in weights.items()}


@dataclass
class Network:
    """The forward pass, which notes how to send gradients back through each layer."""

    weights: Weights
    gradients: Weights = field(default_factory=dict)
    backward: list[Gradient] = field(default_factory=list)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """f32[n, 1, 8, 8] -> logits f32[n, 10]."""
        self.backward.clear()
        x = x.transpose(0, 2, 3, 1)
        for name in ("conv1", "conv2"):
            x = self.relu(self.convolution(name, x))
        x = self.pool(x)
        n, h, w, c = x.shape
        self.backward.append(lambda g: g.reshape(n, c, h, w).transpose(0, 2, 3, 1))
        x = self.relu(self.dense("dense1", x.transpose(0, 3, 1, 2).reshape(n, -1)))
        return self.dense("dense2", x)

    def differentiate(self, gradient: np.ndarray) -> Weights:
        """Gradients of all weights, from the gradient of the logits."""
        for step in reversed(self.backward):
            gradient = step(gradient)
        return self.gradients

    def convolution(self, name: str, x: np.ndarray) -> np.ndarray:
        """3x3, padded by one, channels last: nine shifted views side by side times the weights."""
        w = self.weights[name].transpose(2, 3, 1, 0)
        channels, out = w.shape[2:]
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifts = [(i, j) for i in range(3) for j in range(3)]
        views = [padded[:, i : i + SIDE, j : j + SIDE] for i, j in shifts]
        columns = np.concatenate(views, 3).reshape(-1, 9 * channels)
        matrix = w.reshape(9 * channels, out)
        y = columns @ matrix + self.weights[f"{name}_bias"]

        def back(g: np.ndarray) -> np.ndarray:
            flat = g.reshape(-1, out)
            self.gradients[name] = (columns.T @ flat).reshape(3, 3, channels, out).transpose(3, 2, 0, 1)
            self.gradients[f"{name}_bias"] = flat.sum(0)
            pieces = (flat @ matrix.T).reshape(*x.shape[:3], 9, channels)
            spread = np.zeros_like(padded)
            for k, (i, j) in enumerate(shifts):
                spread[:, i : i + SIDE, j : j + SIDE] += pieces[..., k, :]
            return spread[:, 1:-1, 1:-1]

        self.backward.append(back)
        return y.reshape(*x.shape[:3], out)

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        w = self.weights[name]

        def back(g: np.ndarray) -> np.ndarray:
            self.gradients[name] = g.T @ x
            self.gradients[f"{name}_bias"] = g.sum(0)
            return g @ w

        self.backward.append(back)
        return x @ w.T + self.weights[f"{name}_bias"]

    def relu(self, x: np.ndarray) -> np.ndarray:
        self.backward.append(lambda g: g * (x > 0))
        return np.maximum(x, 0)

    def pool(self, x: np.ndarray) -> np.ndarray:
        """The maximum of each 2x2 block; ties share the gradient."""
        n, h, w, c = x.shape
        blocks = x.reshape(n, h // 2, 2, w // 2, 2, c)
        y = blocks.max((2, 4), keepdims=True)

        def back(g: np.ndarray) -> np.ndarray:
            hit = (blocks == y).astype(np.float32)
            return (hit * (g.reshape(y.shape) / hit.sum((2, 4), keepdims=True))).reshape(x.shape)

        self.backward.append(back)
        return y.reshape(n, h // 2, w // 2, c)


def batches(data: Data, size: int, random: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch in random order; each image moved by up to one pixel, so that more digits are seen."""
    order = random.permutation(len(data.train_labels))
    for start in range(0, len(order), size):
        pick = order[start : start + size]
        shift = tuple(int(s) for s in random.integers(-1, 2, 2))
        yield np.roll(data.train_images[pick], shift, (2, 3)), data.train_labels[pick]


def train(data: Data, epochs: int = 12, size: int = 32, rate: float = 2e-3) -> Weights:
    """Cross-entropy and Adam (arXiv 1412.6980); the rate falls to zero along a cosine. Deterministic on one machine."""
    random = np.random.default_rng(0)
    weights = initial(random)
    first = {k: np.zeros_like(w) for k, w in weights.items()}
    second = {k: np.zeros_like(w) for k, w in weights.items()}
    network = Network(weights)
    total, step = epochs * -(-len(data.train_labels) // size), 0
    for _ in range(epochs):
        for images, labels in batches(data, size, random):
            step += 1
            logits = network(images)
            chance = np.exp(logits - logits.max(1, keepdims=True))
            chance /= chance.sum(1, keepdims=True)
            chance[np.arange(len(labels)), labels] -= 1
            now = rate * 0.5 * (1 + np.cos(np.pi * step / total))
            for k, g in network.differentiate(chance / len(labels)).items():
                first[k] += 0.1 * (g - first[k])
                second[k] += 0.001 * (g * g - second[k])
                moved = (first[k] / (1 - 0.9**step)) / (np.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
                weights[k] -= (now * moved).astype(np.float32)
    return weights


def to_onnx(weights: Weights) -> onnx.ModelProto:
    """image f32[batch, 1, 8, 8] -> probability f32[batch, 10]; the batch is dynamic."""
    nodes = [
        helper.make_node("Conv", ["image", "conv1", "conv1_bias"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "conv2", "conv2_bias"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("MaxPool", ["r2"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "dense1", "dense1_bias"], ["d1"], "dense1", transB=1),
        helper.make_node("Relu", ["d1"], ["r3"], "relu3"),
        helper.make_node("Gemm", ["r3", "dense2", "dense2_bias"], ["logits"], "dense2", transB=1),
        helper.make_node("Softmax", ["logits"], ["probability"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(w, k) for k, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def accuracy(probability: np.ndarray, labels: np.ndarray) -> float:
    return float((probability.argmax(1) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the ONNX file to write")
    path = parser.parse_args().path
    data = load()
    weights = train(data)
    reached = accuracy(Network(weights)(data.test_images), data.test_labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(weights), path)
    print(f"{path}: {reached:.2%} of {len(data.test_labels)} unseen digits read correctly")


if __name__ == "__main__":
    main()
