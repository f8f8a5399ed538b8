"""A frozen graph of whole areas of TensorFlow, and a module of lists and variables, for `tensorflow_fixtures.py`:
Fourier transforms and complex numbers, linear algebra, detection, segments, searches, images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
raw = tf.raw_ops
F, I = tf.float32, tf.int32


def areas_graph(data: Callable[..., np.ndarray]) -> tuple[dict[str, bytes], list[tuple[dict, dict]]]:
    """The graph's file, and inputs with TensorFlow's results."""
    feeds = {
        "x": data(2, 40), "m": data(2, 4, 4), "boxes": np.sort(np.abs(data(20, 4)).reshape(20, 2, 2), 1).reshape(20, 4),
        "scores": data(20, low=0.0), "image": data(2, 6, 7, 3, low=0.0), "ids": np.array([0, 0, 1, 3, 3, 4], np.int32),
        "rows": data(6, 3), "small": np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32),
    }  # fmt: skip
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        ins = {k: v1.placeholder(v.dtype, v.shape, name=k) for k, v in feeds.items()}
        groups = (_signal(ins["x"]), _linear(ins["m"]), _detection(ins["boxes"], ins["scores"], ins["image"]),
                  _sets(ins["ids"], ins["rows"], ins["small"]), _images(ins["image"]))  # fmt: skip
        uses = {name: value for group in groups for name, value in group}
        for name, value in uses.items():
            tf.identity(value, name=f"out_{name}")
        fetches = {f"out_{name}": f"out_{name}:0" for name in uses}
        results = session.run(fetches, {f"{k}:0": v for k, v in feeds.items()})
        return {"graph.pb": graph.as_graph_def().SerializeToString()}, [(feeds, results)]


Uses = Iterator[tuple[str, tf.Tensor]]


def _signal(x: tf.Tensor) -> Uses:
    yield "stft", tf.abs(tf.signal.stft(x, 16, 8))
    yield "mfcc", tf.signal.mfccs_from_log_mel_spectrograms(tf.math.log(tf.abs(x) + 1.0))
    z = tf.complex(x, tf.roll(x, 1, 1) + 0.5)
    one = tf.constant(0.5 - 0.25j, tf.complex64)
    for name, value in {
        "fft": tf.signal.fft(z), "ifft": tf.signal.ifft(z), "times": z * tf.math.conj(z) + one, "over": z / (z + 3.0),
        "power": z**2, "root": tf.sqrt(z), "product": tf.matmul(z, z, adjoint_b=True), "sum": tf.reduce_sum(z, 0),
        "moved": tf.transpose(tf.concat([z, z * 2.0], 0)), "einsum": tf.einsum("ij,kj->ik", z, z),
        "functions": tf.exp(z) + tf.math.log(z) + tf.tanh(z), "fft2": tf.signal.fft2d(tf.reshape(z, [4, 4, 5])),
        "cast": tf.cast(x, tf.complex64) * one,
    }.items():  # fmt: skip
        yield f"{name}_real", tf.math.real(value)
        yield f"{name}_imag", tf.math.imag(value)
    yield "angle", tf.math.angle(z)
    yield "rfft", tf.abs(tf.signal.rfft(x, [24]))
    yield "irfft", tf.signal.irfft(tf.signal.rfft(x) * one)
    yield "rfft2", tf.abs(tf.signal.rfft2d(tf.reshape(x, [2, 5, 8])))
    yield "irfft2", tf.signal.irfft2d(tf.signal.rfft2d(tf.reshape(x, [2, 5, 8])))


def _linear(m: tf.Tensor) -> Uses:
    a = tf.matmul(m, m, transpose_b=True) + 4 * tf.eye(4)
    yield "cholesky", tf.linalg.cholesky(a)
    yield "inverse", tf.linalg.inv(a)
    yield "inverse_adjoint", tf.linalg.inv(m + 4 * tf.eye(4), adjoint=True)
    yield "solve", tf.linalg.solve(a, m)
    yield "triangular", tf.linalg.triangular_solve(a, m, lower=False, adjoint=True)
    yield "determinant", tf.linalg.det(m)
    sign, size = tf.linalg.slogdet(m)
    yield "sign", sign
    yield "log_determinant", size
    q, r = tf.linalg.qr(m[:, :, :3])
    yield "qr", tf.matmul(q, r)
    yield "orthogonal", tf.matmul(q, q, transpose_a=True)
    s, u, v = tf.linalg.svd(m[:, :3])
    yield "singular", s
    yield "svd", tf.matmul(u * s[:, None], v, adjoint_b=True)
    yield "eigenvalues", tf.linalg.eigvalsh(a)
    yield "least_squares", tf.linalg.lstsq(m[:, :, :2], m[:, :, :1], l2_regularizer=0.1)
    yield "least_squares_wide", tf.linalg.lstsq(m[:, :2], m[:, :2], l2_regularizer=0.1)
    yield "exponential", tf.linalg.expm(m)
    yield "cross", tf.linalg.cross(m[..., :3], m[..., 1:])
    band = tf.transpose(m[:, :, :3], [0, 2, 1])
    for align in ("LEFT_RIGHT", "RIGHT_LEFT"):
        yield f"band_{align}", tf.linalg.diag_part(m, k=(-2, 1), padding_value=7.0, align=align)
        yield f"of_band_{align}", tf.linalg.diag(band, k=(-1, 1), padding_value=2.0, align=align)
        yield f"set_band_{align}", tf.linalg.set_diag(m, band, k=(-1, 1), align=align)
    yield "part_above", tf.linalg.diag_part(m[:, :3], k=2)
    yield "of_below", tf.linalg.diag(m[:, 0], k=-1)
    yield "wide", tf.linalg.diag(m[:, 0], k=1, num_rows=4, num_cols=7)
    yield "tridiagonal", tf.linalg.tridiagonal_solve(tf.add(band, [[0.0], [4.0], [0.0]]), m)
    yield "tridiagonal_product", tf.linalg.tridiagonal_matmul(band, m)
    for lower in (True, False):
        far = [[3.0], [0.0]] if lower else [[0.0], [3.0]]
        yield f"banded_{lower}", tf.linalg.banded_triangular_solve(band[:, :2] + far, m, lower=lower)
    yield "permutation", tf.linalg.lu(a)[1]
    yield "rebuilt", tf.linalg.lu_reconstruct(*tf.linalg.lu(a))
    yield "set_diagonal", tf.linalg.set_diag(m, tf.ones([2, 4]))
    yield "set_above", tf.linalg.set_diag(m, tf.ones([2, 3]), k=1)
    yield "set_below", tf.linalg.set_diag(m, tf.ones([2, 2]), k=-2)


def _detection(boxes: tf.Tensor, scores: tf.Tensor, image: tf.Tensor) -> Uses:
    for name, threshold in (("all", 0.0), ("good", 0.4)):
        yield f"nms_{name}", tf.image.non_max_suppression(boxes, scores, 6, 0.3, threshold)
    chosen, count = raw.NonMaxSuppressionV4(
        boxes=boxes, scores=scores, max_output_size=15, iou_threshold=0.3, score_threshold=0.5,
        pad_to_max_output_size=True,
    )  # fmt: skip
    yield "nms_padded", chosen
    yield "nms_count", count
    chosen, values = tf.image.non_max_suppression_with_scores(boxes, scores, 6, 0.3)
    yield "nms_scores", values
    wide = tf.stack([scores, tf.roll(scores, 3, 0)], 1)[None]
    for name, by_class in (("whole", False), ("each", True)):
        found = tf.image.combined_non_max_suppression(boxes[None, :, None], wide, 4, 7, 0.4, 0.3, by_class)
        for part, value in found._asdict().items():
            yield f"combined_{name}_{part}", value
    for method in ("bilinear", "nearest"):
        part = tf.concat([boxes[:3], [[-0.2, 0.5, 1.3, 0.1]]], 0)
        yield f"crop_{method}", tf.image.crop_and_resize(image, part, [0, 1, 1, 0], [5, 4], method, 0.5)
    yield "crop_one", tf.image.crop_and_resize(image, boxes[:2], [0, 1], [1, 3])


def _sets(ids: tf.Tensor, rows: tf.Tensor, small: tf.Tensor) -> Uses:
    for kind in ("sum", "mean", "prod", "max", "min"):
        yield f"segment_{kind}", getattr(tf.math, f"segment_{kind}")(rows, ids)
    for kind in ("sum", "mean", "prod", "max", "min", "sqrt_n"):
        yield f"unsorted_{kind}", getattr(tf.math, f"unsorted_segment_{kind}")(rows, ids - 1, 5)
    for kind in ("sum", "mean", "sqrt_n"):
        yield f"sparse_{kind}", getattr(tf.sparse, f"segment_{kind}")(rows, [0, 2, 5], [0, 0, 2])
    yield "bincount", tf.math.bincount(small, minlength=4, maxlength=7)
    yield "bincount_weights", tf.math.bincount(small, tf.cast(small, F) * 0.5)
    yield "bincount_rows", tf.math.bincount(tf.reshape(small, [2, 4]), minlength=10, maxlength=10, axis=-1)
    yield "bincount_binary", tf.math.bincount(tf.reshape(small, [2, 4]), maxlength=6, axis=-1, binary_output=True)
    yield "histogram", tf.histogram_fixed_width(rows, [-0.5, 0.75], 4)
    edges = tf.sort(tf.reshape(rows, [2, 9]))
    for side in ("left", "right"):
        yield f"searched_{side}", tf.searchsorted(edges, edges[:, ::2] + [[0.0], [0.01]], side)
    yield "bucketize", raw.Bucketize(input=rows, boundaries=[-0.5, 0.0, 0.5])
    different = raw.ListDiff(x=small, y=[1, 9])
    yield "different", different.out
    yield "different_at", different.idx
    for i, part in enumerate(tf.dynamic_partition(rows, ids % 2, 2)):
        yield f"partition{i}", part
    yield "truncated", tf.random.stateless_truncated_normal([51, 7], [3, 4])
    yield "quarters", tf.range(0.0, 1.0, 0.25)
    for name in ("dawsn", "expint", "fresnel_cos", "fresnel_sin", "spence"):
        yield name, getattr(tf.math.special, name)(tf.cast(small, F) * 0.7)
    yield "betainc", tf.math.betainc(tf.abs(rows) + 0.1, 2.0 - rows, rows * 0.5 + 0.5)
    n = tf.reduce_max(small) % 4
    yield "found_slice", rows[n:]
    yield "found_range", tf.range(1, n * 3, 2)
    yield "found_tile", tf.tile(rows, [n, 1])
    yield "found_fill", tf.fill([n, 2], 3.0)


def _images(image: tf.Tensor) -> Uses:
    yield "hsv", tf.image.rgb_to_hsv(image)
    yield "rgb", tf.image.hsv_to_rgb(image)
    yield "saturation", tf.image.adjust_saturation(image, 0.5)
    yield "hue", tf.image.adjust_hue(image, 0.3)
    values, places = tf.nn.max_pool_with_argmax(image, 3, 2, "SAME")
    yield "pool", values
    yield "argmax", places
    yield "argmax_batch", tf.nn.max_pool_with_argmax(image, 2, 2, "VALID", include_batch_in_index=True)[1]
    for kernel in ("lanczos3", "gaussian", "mitchellcubic"):
        yield f"shrunk_{kernel}", tf.image.resize(image, [4, 9], kernel, antialias=True)
    yield "patches", tf.image.extract_patches(image, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME")
    yield "volumes", tf.extract_volume_patches(image[..., None], [1, 2, 3, 2, 1], [1, 2, 2, 1, 1], "SAME")
    kernel = tf.constant(np.linspace(-0.2, 0.3, 18).reshape(3, 2, 3), F)
    yield "dilation", tf.nn.dilation2d(image, kernel, [1, 2, 1, 1], "SAME", "NHWC", [1, 1, 2, 1])
    yield "erosion", tf.nn.erosion2d(image, kernel, [1, 1, 1, 1], "VALID", "NHWC", [1, 1, 1, 1])


class Writers(tf.Module):
    """A list that grows with each turn, and parts of variables that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.zeros([4, 3]), name="table")

    @tf.function(input_signature=[tf.TensorSpec((None, 3), F, "x")])
    def growing(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        sums = tf.TensorArray(F, size=0, dynamic_size=True, element_shape=[3])
        total = tf.zeros([3])
        for i in tf.range(tf.shape(x)[0]):
            total = total * 0.5 + x[i]
            sums = sums.write(i, total)
        return {"sums": sums.stack()}

    @tf.function(input_signature=[tf.TensorSpec((None, 3), F, "x")])
    def until(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Lists that grow until values are large, and one that only some turns write."""
        sums, sizes = (tf.TensorArray(F, size=0, dynamic_size=True) for _ in range(2))
        some = tf.TensorArray(F, size=tf.shape(x)[0])
        total, i = x, 0
        while tf.reduce_max(tf.abs(total)) < 4.0 and i < 12:
            total = total * 1.25 + 0.1
            sums, sizes = sums.write(i, total), sizes.write(i, tf.reduce_sum(total))
            i += 1
        for k in tf.range(tf.shape(x)[0]):
            if x[k, 0] > 0:
                some = some.write(k, x[k])
        frames = tf.signal.frame(x, 2, 1, axis=0)
        return {"sums": sums.stack(), "sizes": sizes.stack(), "some": some.stack(), "frames": frames}

    @tf.function(input_signature=[tf.TensorSpec((None,), F, "x")])
    def draws(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Numbers without a seed."""
        return {
            "truncated": tf.random.truncated_normal([4000]), "gamma": tf.random.gamma([4000], [2.0, 0.5]),
            "poisson": tf.random.poisson([4000], [3.0, 40.0]), "shuffled": tf.random.shuffle(x),
        }  # fmt: skip

    @tf.function(input_signature=[tf.TensorSpec((3,), F, "x")])
    def parts(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        self.table[1].assign(x)
        self.table.scatter_nd_add([[0], [3]], tf.stack([x, x * 2.0]))
        self.table.scatter_update(tf.IndexedSlices(x * 3.0, tf.constant(2)))
        self.table.scatter_max(tf.IndexedSlices(x[None] - 1.0, tf.constant([3])))
        return {"y": self.table.read_value()}
