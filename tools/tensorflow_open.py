"""A frozen graph of images, windows, boxes and loops of open sizes, with TensorFlow's answers for none to nine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow_empty import results_of

v1 = tf.compat.v1
raw = tf.raw_ops
# (batch, rows, columns) of images, and rows of the tables
SIZES = ((2, 5, 8, 4), (1, 1, 3, 1), (3, 9, 6, 9), (1, 0, 5, 0), (0, 4, 4, 6))


def open_graph(data: Callable[..., np.ndarray]) -> tuple[dict[str, bytes], list[tuple[dict, dict]]]:
    """The graph's file, and inputs with TensorFlow's results; a result for which it has an error is left out."""
    calls: list[tuple[dict, dict]] = []
    with tf.Graph().as_default() as graph:
        image = v1.placeholder(tf.float32, (None, None, None, 3), name="image")
        x = v1.placeholder(tf.float32, (None, 3), name="x")
        plane = v1.placeholder(tf.float32, (None, None), name="plane")
        n = v1.placeholder(tf.int32, (), name="n")
        uses = dict(_uses(data, image, x, plane, n))
        for name, value in uses.items():
            tf.identity(value, name=f"out_{name}")
        for batch, rows, columns, count in SIZES:
            feeds = {
                "image": data(batch, rows, columns, 3), "x": data(count, 3), "plane": data(rows, columns),
                "n": np.array(min(count, 5), np.int32),
            }  # fmt: skip
            calls.append((feeds, results_of(graph, list(uses), feeds)))
    return {"graph.pb": graph.as_graph_def().SerializeToString()}, calls


def _uses(data, image, x, plane, n) -> Iterator[tuple[str, tf.Tensor]]:
    # pools and resizes
    for include in (False, True):
        pooled = tf.nn.max_pool_with_argmax(image, 3, 2, "SAME", include_batch_in_index=include)
        yield f"argmax_values_{include}", pooled[0]
        yield f"argmax_places_{include}", pooled[1]
    yield "argmax_valid", tf.nn.max_pool_with_argmax(image, 2, 1, "VALID")[1]
    for corners, half in ((False, False), (True, False), (False, True)):
        yield (
            f"bicubic_{corners}_{half}",
            raw.ResizeBicubic(images=image, size=[7, 4], align_corners=corners, half_pixel_centers=half),
        )
    yield "bicubic_twice", raw.ResizeBicubic(images=image, size=tf.shape(image)[1:3] * 2, half_pixel_centers=True)
    yield "area", raw.ResizeArea(images=image, size=[2, 3])
    yield "area_up", raw.ResizeArea(images=image, size=[11, 13])
    yield "area_corners", raw.ResizeArea(images=image, size=[3, 4], align_corners=True)
    yield "area_half", raw.ResizeArea(images=image, size=(tf.shape(image)[1:3] + 1) // 2)
    yield "crop", tf.image.crop_and_resize(image[:1], [[0.1, 0.0, 0.9, 1.2]], [0], n[None] + [1, 2])
    # convolutions and windows
    kernel = tf.constant(data(3, 3, 3, 4))
    for padding in ("SAME", "VALID"):
        for stride in (1, 2):
            yield f"conv_{padding}_{stride}", tf.nn.conv2d(image, kernel, stride, padding)
            yield f"max_{padding}_{stride}", tf.nn.max_pool2d(image, 3, stride, padding)
            yield f"avg_{padding}_{stride}", tf.nn.avg_pool2d(image, 2, stride, padding)
        yield f"dilated_{padding}", tf.nn.conv2d(image, kernel, 1, padding, dilations=2)
        yield f"depthwise_{padding}", tf.nn.depthwise_conv2d(image, kernel, [1, 2, 2, 1], padding)
        yield (
            f"dilation_{padding}",
            raw.Dilation2D(
                input=image, filter=data(2, 3, 3), strides=[1, 2, 1, 1], rates=[1, 1, 2, 1], padding=padding
            ),
        )
        yield (
            f"patches_{padding}",
            raw.ExtractImagePatches(
                images=image, ksizes=[1, 2, 3, 1], strides=[1, 2, 1, 1], rates=[1, 1, 1, 1], padding=padding
            ),
        )
    yield "conv_1d", tf.nn.conv1d(image[:, 0], tf.constant(data(3, 3, 4)), 1, "VALID")
    # boxes
    corners = tf.concat([x[:, :2], x[:, :2] + tf.abs(x[:, 1:])], 1)
    chosen = raw.NonMaxSuppressionV4(
        boxes=corners, scores=x[:, 0], max_output_size=5, iou_threshold=0.3, score_threshold=-0.5,
        pad_to_max_output_size=True,
    )  # fmt: skip
    yield "padded_suppression", chosen.selected_indices
    yield "padded_suppression_count", chosen.valid_outputs
    ordered = tf.sort(x[:, 0], direction="DESCENDING")
    padded = tf.image.non_max_suppression_padded(
        corners[None], ordered[None], 4, 0.3, -0.5, pad_to_max_output_size=True, sorted_input=True,
        canonicalized_coordinates=True,
    )  # fmt: skip
    yield "batched_suppression", padded[0]
    yield "batched_suppression_count", padded[1]
    # sizes
    yield "linspace", tf.linspace(0.5, 3.0, tf.shape(x)[0])
    found = tf.reshape(tf.where(x > 0), [-1])
    yield "linspace_found", tf.linspace(0.5, 3.0, tf.size(found))
    yield "linspace_n", tf.linspace(-1.0, 1.0, n)
    yield "linspace_64", tf.linspace(tf.constant(0.0, tf.float64), 3.0, tf.size(found) + 1)
    yield "threes", tf.reshape(plane, [-1, 3])
    yield "threes_first", tf.reshape(plane, [3, -1])
    yield "threes_of_three", tf.reshape(image, [-1, 9])
    yield "cumulative_logsumexp", tf.math.cumulative_logsumexp(x * 300.0, 0)
    yield "cumulative_logsumexp_back", tf.math.cumulative_logsumexp(x * 300.0, 0, exclusive=True, reverse=True)
    yield "cumulative_logsumexp_rows", tf.math.cumulative_logsumexp(plane * 300.0, 1)
    # loops whose values change sizes
    yield from _loops(x, plane, n)


def _loops(x, plane, n) -> Iterator[tuple[str, tf.Tensor]]:
    def loop(step, *starts, shapes, count=n):
        names = [s.shape if shape is None else tf.TensorShape(shape) for s, shape in zip(starts, shapes, strict=True)]
        zero = tf.constant(0)
        return v1.while_loop(
            lambda i, *_: i < count, lambda i, *v: (i + 1, *step(i, *v)), (zero, *starts), (zero.shape, *names)
        )[1:]

    yield "grow", loop(lambda i, v: (tf.concat([v, v[:1] + 1.0], 0),), x[:1], shapes=[(None, 3)])[0]
    yield "shrink", loop(lambda i, v: (v[1:],), x, shapes=[(None, 3)])[0]
    yield "prepend", loop(lambda i, v: (tf.concat([[tf.cast(i, tf.float32)], v], 0),), x[:, 0], shapes=[(None,)])[0]
    yield "double", loop(lambda i, v: (tf.concat([v, v], 0),), x[:2, 0], shapes=[(None,)])[0]
    yield "keep", loop(lambda i, v: (tf.boolean_mask(v, v > -0.5) - 0.1,), x[:, 0], shapes=[(None,)])[0]
    yield "set", loop(lambda i, v: (tf.ones([i + 1, 2]) * tf.cast(i, tf.float32),), x[:, :2], shapes=[(None, 2)])[0]
    yield "widen", loop(lambda i, v: (tf.pad(v, [[0, 1], [1, 0]]),), plane, shapes=[(None, None)])[0]
    two = loop(lambda i, a, b: (b, tf.concat([a, b], 0)), x[:1, 0], x[:2, 1], shapes=[(None,), (None,)])
    yield "fibonacci", two[1]
    total = loop(
        lambda i, v, s: (v[: tf.shape(v)[0] // 2], s + tf.reduce_sum(v)), x[:, 0], x[0, 0] * 0, shapes=[(None,), ()]
    )
    yield "halve", total[1]

    def outer(i, v):
        inner = v1.while_loop(
            lambda j, w: j < 2, lambda j, w: (j + 1, tf.concat([w, w[-1:]], 0)), (tf.constant(0), v),
            (tf.TensorShape(()), tf.TensorShape((None,))),
        )  # fmt: skip
        return (inner[1] * 0.5,)

    yield "nested", loop(outer, x[:1, 0], shapes=[(None,)])[0]
    searched = v1.while_loop(
        lambda v: tf.logical_and(tf.size(v) % 16 > 0, tf.reduce_sum(v) < 100.0),
        lambda v: (tf.concat([v, v + 1.0], 0),),
        (x[:1, 0] + 1.5,), (tf.TensorShape((None,)),),
    )  # fmt: skip
    yield "until", searched[0] if isinstance(searched, (list, tuple)) else searched
