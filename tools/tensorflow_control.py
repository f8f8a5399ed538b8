"""Write frozen graphs with the control flow of TensorFlow 1 that the tests read: see tools/tensorflow_fixtures.py.

/tmp/tf/bin/python tools/tensorflow_control.py tests/frontends/tensorflow/fixtures
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_fixtures import data, write

v1 = tf.compat.v1
Outputs = dict[str, Any]


class Cell:
    """A gated unit of 6."""

    output_size = state_size = 6

    def __init__(self, name: str) -> None:
        self.name = name

    def zero_state(self, batch: Any, dtype: Any) -> Any:
        return tf.zeros((batch, 6), dtype)

    def __call__(self, x: Any, h: Any, scope: Any = None) -> tuple[Any, Any]:
        with v1.variable_scope(self.name, reuse=v1.AUTO_REUSE):
            z = tf.matmul(tf.concat([x, h], 1), v1.get_variable("w", (11, 12)))
        keep = tf.sigmoid(z[:, :6])
        h = keep * h + (1 - keep) * tf.tanh(z[:, 6:])
        return h, h


def recurrent() -> Outputs:
    """Loops over arrays of tensors, forwards and backwards, with lengths."""
    x, n = v1.placeholder(tf.float32, (None, None, 5), "x"), v1.placeholder(tf.int32, (None,), "n")
    both, _ = v1.nn.bidirectional_dynamic_rnn(Cell("f"), Cell("b"), x, sequence_length=n, dtype=tf.float32)
    out, last = v1.nn.dynamic_rnn(Cell("f"), x, dtype=tf.float32)
    return {"both": tf.concat(both, -1), "out": out, "last": last}


def branches() -> Outputs:
    """Branches one after the other, inside of each other, and around loops."""
    x, w = v1.placeholder(tf.float32, (3, 4), "x"), v1.get_variable("w", (4, 4))
    a, b = v1.cond(
        tf.reduce_sum(x) > 0,
        lambda: (tf.matmul(x, w), tf.constant(1.5)),
        lambda: (tf.sin(x), tf.reduce_sum(x)),
    )
    c = v1.cond(b > 1, lambda: v1.cond(tf.reduce_mean(a) > 0, lambda: a * 2, lambda: a * 3), lambda: -a)
    d = v1.cond(
        x[0, 0] > 0,
        lambda: v1.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (0, x))[1],
        lambda: tf.map_fn(lambda row: row + tf.reduce_sum(row), x),
    )
    e = v1.case([(x[0, 0] < -1, lambda: x * 1), (x[0, 0] < 0, lambda: x * 2)], default=lambda: x * 3)
    return {"a": a, "b": b, "c": c, "d": d, "e": e}


def loops() -> Outputs:
    """A loop in a loop, with a branch, until values are large."""
    x, w = v1.placeholder(tf.float32, (None, 4), "x"), v1.get_variable("w", (4, 4))

    def outer(i: Any, v: Any) -> tuple[Any, Any]:
        _, u = v1.while_loop(lambda j, u: j < i + 1, lambda j, u: (j + 1, tf.tanh(tf.matmul(u, w))), (0, v))
        return i + 1, v1.cond(tf.reduce_sum(u) > 0, lambda: u + 1, lambda: u - tf.cast(i, tf.float32))

    i, v = v1.while_loop(lambda i, v: tf.logical_and(i < 5, tf.reduce_max(v) < 3), outer, (0, x))
    return {"i": i, "v": v}


def frozen(path: Path, build: Callable[[], Outputs], calls: list[dict[str, np.ndarray]]) -> None:
    with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        v1.set_random_seed(1)
        outputs = {k: tf.identity(v, name=k) for k, v in build().items()}
        session.run(v1.global_variables_initializer())
        definition = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), list(outputs))
        results = [session.run(outputs, {f"{k}:0": v for k, v in call.items()}) for call in calls]
    write(path, {"graph.pb": definition.SerializeToString()}, list(zip(calls, results, strict=True)))


def main(folder: Path) -> None:
    v1.disable_v2_behavior()
    v1.disable_control_flow_v2()
    lengths = [np.array(n, np.int32) for n in ([4, 7], [2])]
    frozen(folder / "old_recurrent.zip", recurrent, [{"x": data(len(n), 7, 5), "n": n} for n in lengths])
    frozen(folder / "old_branches.zip", branches, [{"x": data(3, 4) + d} for d in (2, -2, 0, -0.25)])
    frozen(folder / "old_loops.zip", loops, [{"x": data(2, 4) * k} for k in (1, 4)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
