"""One frozen graph with a use of each of many ops, for `tensorflow_fixtures.py`: a result per use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
raw = tf.raw_ops


def ops_graph(data: Callable[..., np.ndarray]) -> tuple[dict[str, bytes], list[tuple[dict, dict]]]:
    """The graph's file, and inputs with TensorFlow's results."""
    feeds = {
        "x": data(2, 3, 4), "y": data(3, 4), "p": data(2, 3, 4, low=0.1, high=3.0),
        "i": np.array([[2, 0], [1, 2]], np.int32),
        "m": np.array([[5, -7, 3], [-4, 9, 0]], np.int32), "d": np.array([[2, 2, -2], [3, -4, 5]], np.int32),
        "img": data(1, 6, 7, 3), "b": np.array([[True, False, True, False]] * 3), "q": data(2, 4, 5),
        "odd": np.array([0.5, 1.5, -0.5, -2.5, np.inf, -np.inf, np.nan, -0.0], np.float32),
    }  # fmt: skip
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        ins = {k: v1.placeholder(v.dtype, v.shape, name=k) for k, v in feeds.items()}
        uses = dict(_uses(data, **ins))
        for name, value in uses.items():
            tf.identity(value, name=f"out_{name}")
        fetches = {f"out_{name}": f"out_{name}:0" for name in uses}
        results = session.run(fetches, {f"{k}:0": v for k, v in feeds.items()})
        return {"graph.pb": graph.as_graph_def().SerializeToString()}, [(feeds, results)]


def _uses(data, x, y, p, i, m, d, img, b, q, odd):
    for op in (
        "Abs", "Neg", "Sign", "Exp", "Expm1", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh", "Asinh", "Atan", "Sigmoid",
        "Erf", "Erfc", "Floor", "Ceil", "Rint", "Round", "Square", "Relu", "Relu6", "Elu", "Selu", "Softsign",
        "Softplus", "IsNan", "IsInf", "IsFinite", "LeakyRelu", "Softmax", "LogSoftmax", "ZerosLike", "OnesLike",
    ):  # fmt: skip
        argument = {"features": x} if op in _OF_FEATURES else {"logits": x} if "oftmax" in op else {"x": x}
        yield f"u_{op}", getattr(raw, op)(**argument)
        if op not in ("Sin", "Cos", "Tan", "Softmax", "LogSoftmax"):
            (name,) = argument
            yield f"o_{op}", getattr(raw, op)(**{name: odd})
    for op in ("Log", "Log1p", "Sqrt", "Rsqrt", "Reciprocal", "Inv", "Lgamma", "Digamma", "Acosh"):
        yield f"p_{op}", getattr(raw, op)(x=p + 1.0 if op == "Acosh" else p)
    for op in ("Asin", "Acos", "Atanh", "Erfinv", "BesselI0e", "BesselI1e", "Ndtri"):
        value = tf.abs(x) * 0.9 + 0.01 if op == "Ndtri" else x
        name = {"BesselI0e": "bessel_i0e", "BesselI1e": "bessel_i1e", "Erfinv": "erfinv", "Ndtri": "ndtri"}.get(op)
        yield f"a_{op}", getattr(tf.math, name)(value) if name else getattr(raw, op)(x=value)
    for op in (
        "Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum", "Less", "LessEqual", "Greater", "GreaterEqual", "Equal",
        "NotEqual", "SquaredDifference", "Atan2", "RealDiv", "FloorDiv", "DivNoNan", "FloorMod", "Mod",
    ):  # fmt: skip
        arguments = {"y": x, "x": y} if op == "Atan2" else {"x": x, "y": y}
        yield f"b_{op}", getattr(raw, op)(**arguments)
    for op in ("FloorDiv", "FloorMod", "Mod", "TruncateDiv", "Div", "BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield f"i_{op}", getattr(raw, op)(x=m, y=d)
    yield "b_Pow", raw.Pow(x=p, y=y)
    for op in ("Xlogy", "Xdivy", "Xlog1py", "MulNoNan"):
        yield f"b_{op}", getattr(raw, op)(x=tf.nn.relu(x), y=p)
    yield "b_Igamma", tf.math.igamma(p, p + 0.5)
    yield "b_Zeta", tf.math.zeta(p + 1.5, p)
    yield "shift_left", raw.LeftShift(x=m, y=tf.abs(d))
    yield "shift_right", raw.RightShift(x=m, y=tf.abs(d))
    yield "add_n", tf.add_n([x, x * 2.0, y + x])
    yield "logical", tf.logical_or(tf.logical_and(b, y > 0), tf.logical_not(b))
    yield "clip", tf.clip_by_value(x, -0.3, 0.4)
    yield "cast_int", tf.cast(x * 10, tf.int32)
    yield "cast_bool", tf.cast(m, tf.bool)
    yield "cast_half", tf.cast(tf.cast(x, tf.float16), tf.float32)
    yield "cast_bf16", tf.cast(tf.cast(x, tf.bfloat16), tf.float32)
    yield "bitcast", tf.bitcast(x, tf.int32)
    yield "select", tf.where(b, y, -y)
    yield "select_row", raw.Select(condition=tf.constant([True, False, True]), x=y, y=-y)
    yield "cumsum", tf.cumsum(x, 1, exclusive=True, reverse=True)
    yield "cumprod", tf.math.cumprod(x, -1)
    # reductions
    for op in ("Sum", "Prod", "Max", "Min", "Mean"):
        yield f"r_{op}", getattr(raw, op)(input=x, axis=[0, -1], keep_dims=False)
        yield f"k_{op}", getattr(raw, op)(input=x, axis=[1], keep_dims=True)
    yield "mean_int", tf.reduce_mean(m)
    yield "r_all", tf.reduce_all(b, 0)
    yield "r_any", tf.reduce_any(b, 1)
    yield "norm", tf.norm(x, axis=1)
    yield "argmax", tf.argmax(x, 1)
    yield "argmin", tf.argmin(x, 2, output_type=tf.int32)
    yield "segments", tf.math.unsorted_segment_sum(y, tf.constant([1, 0, 1]), 3)
    yield "l2", tf.nn.l2_loss(x)
    # shapes
    yield "reshape", tf.reshape(x, [-1, 6])
    yield "squeeze", tf.squeeze(x[:1], 0)
    yield "transpose", tf.transpose(x, [2, 0, 1])
    yield "concat", tf.concat([x, x * 2.0], 1)
    yield "pack", tf.stack([y, y + 1.0], 1)
    yield "unpack", tf.unstack(x, axis=1)[1]
    yield "split", tf.split(x, 2, 2)[1]
    yield "split_v", tf.split(x, [1, -1], 2)[1]
    yield "tile", tf.tile(y, [2, 3])
    yield "broadcast", tf.broadcast_to(y, [2, 3, 4])
    yield "pad", tf.pad(y, [[1, 0], [2, 1]], constant_values=7.0)
    yield "reflect", tf.pad(y, [[1, 0], [2, 1]], "REFLECT")
    yield "symmetric", tf.pad(y, [[1, 0], [2, 1]], "SYMMETRIC")
    yield "reverse", tf.reverse(x, [0, 2])
    yield "reverse_sequence", tf.reverse_sequence(x, [2, 3], seq_axis=1, batch_axis=0)
    yield "roll", tf.roll(x, [1, -1], [1, 2])
    yield "space_to_depth", tf.nn.space_to_depth(img[:, :, :6], 2)
    yield "depth_to_space", tf.nn.depth_to_space(tf.concat([img, img[..., :1]], 3), 2)
    yield "space_to_batch", tf.space_to_batch(img, [2, 3], [[0, 2], [1, 1]])
    yield "batch_to_space", tf.batch_to_space(tf.tile(img, [4, 1, 1, 1]), [2, 2], [[1, 0], [2, 1]])
    yield "slice", tf.slice(x, [0, 1, 1], [-1, 2, -1])
    yield "diag", tf.linalg.diag(y)
    yield "diag_part", tf.linalg.diag_part(x[:, :3, :3])
    yield "band", tf.linalg.band_part(x, 1, 0)
    yield "fill", tf.fill([2, 3], x[0, 0, 0])
    yield "range", tf.range(tf.shape(x)[1])
    yield "linspace", tf.linspace(x[0, 0, 0], 3.0, 5)
    yield "one_hot", tf.one_hot(i, 4, 2.0, -1.0, axis=1)
    yield "rank_size", tf.stack([tf.rank(x), tf.size(x)])
    # slices, gathers
    yield "strided", x[:, ::-1, tf.newaxis, 1:3]
    yield "strided_drop", x[..., -1]
    yield "strided_step", x[1:, 0:3:2, -1]
    yield "strided_run", x[:, tf.argmax(y[:, 0])]
    yield "gather", tf.gather(y, i)
    yield "gather_axis", tf.gather(x, i, axis=1)
    yield "gather_batch", tf.gather(x, i, axis=1, batch_dims=1)
    yield "gather_batch_2", tf.gather(x, i, axis=2, batch_dims=1)
    yield "gather_nd", tf.gather_nd(y, i)
    yield "scatter_nd", tf.scatter_nd(i, tf.constant([1.0, 2.0]), [3, 4])
    yield "tensor_scatter", tf.tensor_scatter_nd_update(y, i, [9.0, 8.0])
    yield "tensor_scatter_add", tf.tensor_scatter_nd_add(y, i, [9.0, 8.0])
    yield "tensor_scatter_max", tf.tensor_scatter_nd_max(y, i, [0.1, 0.2])
    values, places = tf.math.top_k(y, 3)
    yield "top_k", values
    yield "top_k_index", places
    yield "sort", tf.sort(y, axis=0, direction="DESCENDING")
    # products
    yield "matmul", tf.matmul(y, y, transpose_b=True)
    yield "matmul_a", tf.matmul(y, y, transpose_a=True)
    yield "batch_matmul", tf.matmul(x, q)
    yield "batch_matmul_t", tf.matmul(x, x, transpose_b=True)
    yield "einsum", tf.einsum("bij,bjk->bki", x, q)
    kernel, deep = tf.constant(data(3, 2, 3, 5)), tf.constant(data(3, 2, 3, 2))
    for padding in ("SAME", "VALID"):
        yield f"conv_{padding}", tf.nn.conv2d(img, kernel, [1, 2, 3, 1], padding)
        yield f"conv_dilated_{padding}", tf.nn.conv2d(img, kernel, 1, padding, dilations=2)
        yield f"depthwise_{padding}", tf.nn.depthwise_conv2d(img, deep, [1, 2, 2, 1], padding)
        back = tf.constant(data(3, 3, 4, 3))
        size = [1, 12, 14, 4] if padding == "SAME" else [1, 14, 15, 4]
        yield f"transposed_{padding}", tf.nn.conv2d_transpose(img, back, size, 2, padding)
        yield f"max_pool_{padding}", tf.nn.max_pool2d(img, 3, 2, padding)
        yield f"avg_pool_{padding}", tf.nn.avg_pool2d(img, [2, 3], [2, 2], padding)
    yield "conv_explicit", tf.nn.conv2d(img, kernel, 1, [[0, 0], [2, 1], [0, 1], [0, 0]])
    yield "conv_groups", tf.nn.conv2d(tf.concat([img, img], 3), tf.constant(data(3, 3, 3, 4)), 1, "SAME")
    yield "conv1d", tf.nn.conv1d(q, tf.constant(data(3, 5, 2)), 1, "SAME")
    yield "conv3d", tf.nn.conv3d(img[:, :, :, None, :], tf.constant(data(2, 3, 1, 3, 4)), [1, 1, 2, 1, 1], "SAME")
    yield "bias", tf.nn.bias_add(img, tf.constant(data(3)))
    yield "bias_2d", tf.nn.bias_add(y, tf.constant(data(4)))
    args = [tf.constant(data(3, low=0.5, high=1.5)) for _ in range(4)]
    yield "batch_norm", v1.nn.fused_batch_norm(img, *args, is_training=False)[0]
    yield "batch_norm_train", v1.nn.fused_batch_norm(img, args[0], args[1], is_training=True)[0]
    yield "lrn", tf.nn.local_response_normalization(tf.concat([img, img], 3), 2, 1.0, 0.5, 0.75)
    # images
    for size in ([4, 10], [12, 14]):
        tag = f"{size[0]}"
        for corners, half in ((False, True), (False, False), (True, False)):
            mode = "half" if half else "corners" if corners else "plain"
            options = {"images": img, "size": size, "align_corners": corners, "half_pixel_centers": half}
            yield f"bilinear_{mode}_{tag}", raw.ResizeBilinear(**options)
            yield f"nearest_{mode}_{tag}", raw.ResizeNearestNeighbor(**options)
            if not corners:
                yield f"bicubic_{mode}_{tag}", raw.ResizeBicubic(**options)
    yield "area", raw.ResizeArea(images=img, size=[3, 1])
    yield "patches", tf.image.extract_patches(img, [1, 2, 3, 1], [1, 2, 1, 1], [1, 1, 2, 1], "VALID")
    yield "contrast", tf.image.adjust_contrast(img, 1.7)
    yield "fake_quant", tf.quantization.fake_quant_with_min_max_args(x * 8, -3.0, 5.0)
    yield "fake_quant_vars", tf.quantization.fake_quant_with_min_max_vars(x, -0.4, 0.7)


_OF_FEATURES = frozenset(("Relu", "Relu6", "Elu", "Selu", "Softsign", "Softplus", "LeakyRelu"))
