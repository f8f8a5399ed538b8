"""Why a model takes its time, and why it answers as it does: two pages to open in a browser.

python examples/explain.py model.onnx pages
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import ingot
from ingot.debug.attributions.page import Attributions, page


def explain(model: str, folder: Path) -> str:
    """Write attributions.html for a random input; return the table of steps with their times."""
    folder.mkdir(parents=True, exist_ok=True)
    compiled = ingot.compile(model, dynamic=False)
    (spec,) = compiled.inputs
    x = np.random.default_rng(0).standard_normal([*map(int, map(str, spec.shape))], np.float32)
    scores = np.asarray(compiled(x))
    classes = scores.argmax(1)
    values = ingot.attribute(model, x, target=classes)
    chosen = np.take_along_axis(scores, classes[:, None], 1)[:, 0]
    inputs, attributions = {spec.name: x}, {spec.name: np.asarray(values)}
    method, name = "integrated_gradients", Path(model).stem
    found = Attributions(name, method, inputs, attributions, classes.tolist(), chosen.tolist())
    (folder / "attributions.html").write_text(page(found))
    return compiled.explain(x)  # `ingot explain model.onnx --html page.html` draws graph, timeline and memory


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(explain(options.model, options.folder))
