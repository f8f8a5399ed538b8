"""Quantize a model so that its accuracy stays: number formats chosen by measurement, checked on samples held out.

python examples/digits.py digits.onnx
python examples/quantize_with_metric.py digits.onnx -o digits.ingot
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_digits

import ingot
from ingot.transform.quantize.run import QuantizedModel


def accuracy(outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> float:
    """Of the outputs and labels of all calls."""
    hits = [np.argmax(logits, 1) == label for logits, label in zip(outputs, labels, strict=True)]
    return float(np.concatenate(hits).mean())


def quantize(model: str, count: int = 400, seconds: float = 20) -> QuantizedModel:
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return ingot.quantize(
        model, {"x": images[-count:]}, labels[-count:], metric=accuracy, at_least=0.99, batch=50, seconds=seconds
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("-o", "--output", default="quantized.ingot")
    options = parser.parse_args()
    quantized = quantize(options.model)
    print(quantized.report)
    quantized.save(options.output)
