"""A frozen graph of ops on axes of open size, with TensorFlow's answers for none, one and five elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
raw = tf.raw_ops
SIZES = (0, 1, 5)


def empty_graph(data: Callable[..., np.ndarray]) -> tuple[dict[str, bytes], list[tuple[dict, dict]]]:
    """The graph's file, and inputs with TensorFlow's results; a result for which it has an error is left out."""
    types = {
        "x": (tf.float32, (None, 3)), "rows": (tf.float32, (3, None)), "i": (tf.int32, (4,)),
        "ids": (tf.int32, (None,)), "image": (tf.float32, (1, None, None, 3)), "square": (tf.float32, (2, None, None)),
    }  # fmt: skip
    calls: list[tuple[dict, dict]] = []
    with tf.Graph().as_default() as graph:
        ins = {name: v1.placeholder(dtype, shape, name=name) for name, (dtype, shape) in types.items()}
        uses = dict(_uses(data, **ins))
        for name, value in uses.items():
            tf.identity(value, name=f"out_{name}")
        for size in SIZES:
            feeds = {
                name: data(*(size if d is None else d for d in shape))
                if dtype == tf.float32
                else np.arange(size if shape == (None,) else 4, dtype=np.int32) % max(size, 1)
                for name, (dtype, shape) in types.items()
            }
            calls.append((feeds, results_of(graph, list(uses), feeds)))
    return {"graph.pb": graph.as_graph_def().SerializeToString()}, calls


def results_of(graph: tf.Graph, names: list[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    results: dict[str, np.ndarray] = {}
    with v1.Session(graph=graph) as session:
        for name in names:
            try:
                results[f"out_{name}"] = session.run(f"out_{name}:0", {f"{k}:0": v for k, v in feeds.items()})
            except tf.errors.OpError:
                continue
    return results


def _uses(data, x, rows, i, ids, image, square) -> Iterator[tuple[str, tf.Tensor]]:
    for kind in ("sum", "prod", "max", "min", "mean", "logsumexp", "variance"):
        yield f"reduce_{kind}", getattr(tf.math, f"reduce_{kind}")(x, 0)
    yield "argmax", tf.argmax(x, 0)
    yield "softmax", tf.nn.softmax(rows)
    yield "cumsum", tf.cumsum(x, 0, reverse=True)
    yield "sort", tf.sort(x, 0)
    yield "top_k", tf.math.top_k(rows, 1)[0]
    yield "nth", raw.NthElement(input=rows, n=0)
    yield "in_top_k", tf.math.in_top_k(tf.constant([0, 2, 9]), rows, 1)
    # elements by index
    yield "gather", tf.gather(x, i)
    yield "gather_by_open", tf.gather(tf.constant(data(5, 3)), ids)
    yield "gather_batch", tf.gather(x, ids[:, None] % 3, batch_dims=1)
    yield "gather_nd", tf.gather_nd(x, i[:, None])
    yield "element", x[i[1]]
    yield "last", x[-1]
    yield "last_rows", x[-2:]
    yield "from_element", x[i[1] :]
    yield "mask", tf.boolean_mask(x, x[:, 0] > 0)
    yield "where", tf.where(x > 0)
    yield "unique", tf.unique(ids)[0]
    yield "different", raw.ListDiff(x=ids, y=[1, 9])[0]
    yield "scatter", tf.scatter_nd(ids[:, None], x, [5, 3])
    yield "scatter_update", tf.tensor_scatter_nd_update(x, i[:1, None], tf.constant(data(1, 3)))
    for kind in ("sum", "mean", "max"):
        yield f"segment_{kind}", getattr(tf.math, f"segment_{kind}")(x, ids)
        yield f"unsorted_{kind}", getattr(tf.math, f"unsorted_segment_{kind}")(x, ids, 5)
    yield "sparse_segment", tf.sparse.segment_sum(tf.constant(data(5, 3)), ids, ids)
    yield "bincount", tf.math.bincount(ids)
    yield "one_hot", tf.one_hot(i, tf.shape(x)[0])
    yield "partition", tf.dynamic_partition(x, ids % 2, 2)[0]
    # shapes
    yield "reshape", tf.reshape(x, [tf.shape(x)[0], -1])
    yield "split", tf.split(rows, [1, -1], 1)[1]
    yield "tile", tf.tile(x, i[:2])
    yield "repeat", tf.repeat(x, ids, 0)
    for mode in ("CONSTANT", "REFLECT", "SYMMETRIC"):
        yield f"pad_{mode}", tf.pad(x, [[1, 2], [0, 0]], mode)
        yield f"pad_run_{mode}", tf.pad(x, tf.reshape(i, [2, 2]), mode)
    yield "roll", tf.roll(x, 2, 0)
    yield "reverse_sequence", tf.reverse_sequence(x, ids % 3, seq_axis=1, batch_axis=0)
    yield "diagonals", tf.linalg.diag_part(square)
    # products and images
    yield "product", tf.matmul(rows, x)
    yield "inverse", tf.linalg.inv(tf.matmul(square, square, transpose_b=True) + 4 * tf.eye(tf.shape(square)[1]))
    kernel = tf.constant(data(3, 3, 3, 4))
    yield "conv", tf.nn.conv2d(image, kernel, 2, "SAME")
    yield (
        "conv_transpose",
        tf.nn.conv2d_transpose(
            image, tf.constant(data(3, 3, 4, 3)), tf.concat([tf.shape(image)[:1], tf.shape(image)[1:3] * 2, [4]], 0), 2
        ),
    )
    yield "max_pool", tf.nn.max_pool2d(image, 3, 2, "SAME")
    yield "avg_pool", tf.nn.avg_pool2d(image, 3, 2, "SAME")
    yield "bilinear", raw.ResizeBilinear(images=image, size=[4, 9])
    yield "nearest", raw.ResizeNearestNeighbor(images=image, size=i[:2])
    yield "crop", tf.image.crop_and_resize(image, [[0.0, 0.0, 1.0, 1.0]], [0], [3, 4])
    yield "boxes", tf.image.non_max_suppression(tf.concat([x, x[:, :1]], 1), x[:, 0], 3, 0.5)
    yield "loss", tf.nn.softmax_cross_entropy_with_logits(rows, rows)
    # rows of open length
    yield "ragged", tf.RaggedTensor.from_value_rowids(ids, ids, nrows=5, validate=False).to_tensor()
    yield "ragged_mask", tf.ragged.boolean_mask(x, x > 0).to_tensor()
    splits = tf.RaggedTensor.from_row_splits([1, 2, 3, 4, 5], [0, 2, 3, 5], validate=False)
    yield "ragged_gather", tf.gather(splits, ids % 3).to_tensor()
    yield "scan", tf.scan(lambda total, row: total * 0.5 + row, x, tf.zeros([3]))
    yield (
        "slice_gradient",
        raw.StridedSliceGrad(shape=tf.shape(x), begin=[0], end=[2], strides=[1], dy=x[:2], begin_mask=0),
    )
