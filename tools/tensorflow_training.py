"""A frozen graph of what training, sparse tensors and random numbers need, and modules of a training step and of loops
and branches whose values change their sizes, for `tensorflow_fixtures.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
raw = tf.raw_ops
F, I = tf.float32, tf.int32
Uses = Iterator[tuple[str, tf.Tensor]]


def training_graph(data: Callable[..., np.ndarray]) -> tuple[dict[str, bytes], list[tuple[dict, dict]]]:
    """The graph's file, and inputs with TensorFlow's results."""
    feeds = {
        "x": data(2, 7, 6, 4), "g": data(2, 7, 6, 4), "w": data(3, 2, 4, 5), "rows": data(5, 4),
        "p": data(3, 4, low=0.1),
        "labels": np.array([0, 3, 1, 2, 3], np.int32), "seed": np.array([7, -3], np.int32),
        "at": np.array([[0, 1], [2, 0], [2, 3]], np.int64), "v": data(3),
    }  # fmt: skip
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        ins = {k: v1.placeholder(v.dtype, v.shape, name=k) for k, v in feeds.items()}
        groups = (
            _gradients(ins["x"], ins["g"], ins["w"], ins["rows"], ins["labels"]), _random(ins["seed"]),
            _sparse(ins["at"], ins["v"], ins["rows"]), _cells(ins["rows"], data), _others(ins["x"], ins["p"]),
        )  # fmt: skip
        uses = {name: value for group in groups for name, value in group}
        for name, value in uses.items():
            tf.identity(value, name=f"out_{name}")
        fetches = {f"out_{name}": f"out_{name}:0" for name in uses}
        results = session.run(fetches, {f"{k}:0": v for k, v in feeds.items()})
        return {"graph.pb": graph.as_graph_def().SerializeToString()}, [(feeds, results)]


def _gradients(x: tf.Tensor, g: tf.Tensor, w: tf.Tensor, rows: tf.Tensor, labels: tf.Tensor) -> Uses:
    for name in ("Relu", "Relu6", "Elu", "Selu", "Softplus", "Softsign", "Tanh", "Sigmoid", "LeakyRelu"):
        y = getattr(raw, name)(**{"x" if name in ("Tanh", "Sigmoid") else "features": 3.0 * x})
        yield f"g_{name}", tf.gradients(y, x, g)[0]
    for name in ("Sqrt", "Rsqrt", "Reciprocal"):
        yield f"g_{name}", tf.gradients(getattr(raw, name)(x=tf.abs(x) + 1.0), x, g)[0]
    for padding, stride in (("SAME", 2), ("VALID", 1)):
        y = tf.nn.conv2d(x, w, stride, padding)
        yield f"g_conv_{padding}_w", tf.gradients(tf.nn.relu(y), w)[0]
        yield f"g_conv_{padding}_x", tf.gradients(tf.nn.relu(y), x)[0]
        y = tf.nn.depthwise_conv2d(x, w[:, :, :, :2], [1, stride, stride, 1], padding)
        yield f"g_depthwise_{padding}_w", tf.gradients(tf.nn.relu(y), w)[0]
        yield f"g_depthwise_{padding}_x", tf.gradients(tf.nn.relu(y), x)[0]
        for pool in ("max", "avg"):
            y = getattr(tf.nn, f"{pool}_pool2d")(x, (3, 2), stride, padding)
            yield f"g_{pool}_{padding}", tf.gradients(y * y, x)[0]
    y, _, _ = v1.nn.fused_batch_norm(x, tf.abs(rows[0]), rows[1], epsilon=1e-3, is_training=True)
    yield "g_norm_training", tf.gradients(y * g, x)[0]
    y, _, _ = v1.nn.fused_batch_norm(
        x, rows[0], rows[1], mean=rows[2], variance=tf.abs(rows[3]) + 0.5, epsilon=1e-3, is_training=False
    )
    yield "g_norm", tf.gradients(y * y, x)[0]
    yield "g_norm_scale", tf.gradients(y * y, rows)[0]
    yield "g_bilinear", tf.gradients(tf.image.resize(x, (9, 4)) ** 2, x)[0]
    yield "g_nearest", tf.gradients(tf.image.resize(x, (9, 4), "nearest") ** 2, x)[0]
    yield "g_mirror", tf.gradients(tf.pad(x, [[0, 0], [2, 1], [0, 3], [0, 0]], "REFLECT") ** 2, x)[0]
    yield "g_slice", tf.gradients(x[:, 1:6:2, ::-1, 1] ** 2, x)[0]
    yield "g_lrn", tf.gradients(tf.nn.lrn(x, 1) ** 2, x)[0]
    yield "g_concat", tf.gradients(tf.concat([x, 2 * x, x * x], 2) ** 2, x)[0]
    yield "g_broadcast", tf.gradients((x + rows[0]) * rows[1], rows)[0]
    yield "g_bias", tf.gradients(tf.nn.bias_add(x, rows[0]) ** 2, rows)[0]
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, rows)
    yield "sparse_entropy", loss
    yield "g_sparse_entropy", tf.gradients(loss, rows)[0]
    loss = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(rows[::-1]), rows)
    yield "entropy", loss
    yield "g_entropy", tf.gradients(loss, rows)[0]


def _random(seed: tf.Tensor) -> Uses:
    for kind in (F, tf.float64):
        yield f"uniform_{kind.name}", tf.random.stateless_uniform((5, 3), seed, -1.0, 2.0, kind)
        yield f"normal_{kind.name}", tf.random.stateless_normal((5, 3), seed, dtype=kind)
        yield f"old_{kind.name}", raw.StatelessRandomUniform(shape=(7,), seed=seed, dtype=kind)
    for kind in (I, tf.int64):
        yield f"below_{kind.name}", tf.random.stateless_uniform((5, 3), seed, -4, 100, kind)
    yield "bits", tf.bitcast(tf.random.stateless_uniform((5, 3), seed, None, None, tf.uint32), I)
    yield "split", tf.random.split(seed, 3)
    yield "folded", tf.random.fold_in(seed, 5)


def _sparse(at: tf.Tensor, v: tf.Tensor, rows: tf.Tensor) -> Uses:
    a = tf.SparseTensor(at, v, (3, 5))
    yield "dense", tf.sparse.to_dense(a, 0.5)
    yield "matmul", tf.sparse.sparse_dense_matmul(a, rows)
    yield "matmul_adjoint", tf.sparse.sparse_dense_matmul(a, rows[:3], adjoint_a=True)
    yield "matmul_of_adjoint", tf.sparse.sparse_dense_matmul(a, tf.transpose(rows), adjoint_b=True)
    yield "sum", tf.sparse.reduce_sum(a, 1)
    yield "max", tf.sparse.reduce_max(a, 1, keepdims=True)
    yield "reordered", tf.sparse.reorder(tf.SparseTensor(at[::-1], v[::-1], (3, 5))).values
    yield "reshaped", tf.sparse.reshape(a, (5, -1)).indices
    yield "joined", tf.sparse.to_dense(tf.sparse.concat(1, [a, a]))
    yield "added", tf.sparse.add(a, tf.ones((3, 5)))
    yield "times", (a * tf.reshape(tf.range(15.0), (3, 5))).values
    yield "softmax", tf.sparse.softmax(a).values
    yield "with_zeros", raw.SparseMatMul(a=rows, b=rows, transpose_b=True)


def _cells(rows: tf.Tensor, data: Callable[..., np.ndarray]) -> Uses:
    h, cs, w, b = (tf.constant(data(*s)) for s in ((5, 3), (5, 3), (7, 12), (12,)))
    peeps = {k: tf.constant(data(3)) for k in ("wci", "wcf", "wco")}
    for peephole in (False, True):
        out = raw.LSTMBlockCell(x=rows, cs_prev=cs, h_prev=h, w=w, b=b, use_peephole=peephole, cell_clip=0.6, **peeps)
        for name, value in out._asdict().items():
            yield f"cell_{name}_{peephole}", value
    x = tf.stack([rows, -rows, 2.0 * rows])
    for most in (3, 2):
        for op, more in ((raw.BlockLSTM, {"forget_bias": 0.5}), (raw.BlockLSTMV2, {})):
            out = op(
                seq_len_max=tf.constant(most, tf.int64), x=x, cs_prev=cs, h_prev=h, w=w, b=b, cell_clip=2.0,
                use_peephole=True, **peeps, **more,
            )  # fmt: skip
            yield f"{op.__name__}_{most}_h", out.h[:most]
            yield f"{op.__name__}_{most}_cs", out.cs[:most]
    out = raw.GRUBlockCell(
        x=rows, h_prev=h, w_ru=data(7, 6), w_c=data(7, 3), b_ru=tf.constant(data(6)), b_c=tf.constant(data(3))
    )
    for name, value in out._asdict().items():
        yield f"gru_{name}", value


def _others(x: tf.Tensor, p: tf.Tensor) -> Uses:
    for name in ("j0", "j1", "y0", "y1", "k0", "k0e", "k1", "k1e"):
        yield f"bessel_{name}", getattr(tf.math.special, f"bessel_{name}")(5.0 * p)
    yield "lbeta", tf.math.lbeta(p)
    yield "next_after", tf.math.nextafter(p, 1.0)
    for flags in ({}, {"reverse": True}):
        yield f"cumulative_logsumexp{len(flags)}", tf.math.cumulative_logsumexp(p, 1, **flags)
    for kernel in ("lanczos3", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic", "lanczos5"):
        for antialias in (False, True):
            yield (
                f"scaled_{kernel}_{antialias}",
                raw.ScaleAndTranslate(
                    images=x,
                    size=(5, 9),
                    scale=(0.6, 1.4),
                    translation=(0.3, -0.5),
                    kernel_type=kernel,
                    antialias=antialias,
                ),
            )


class Step(tf.Module):
    """Training steps of a small classifier, one for each optimizer's op."""

    def __init__(self, data: Callable[..., np.ndarray]) -> None:
        super().__init__()
        self.w, self.b = (tf.Variable(data(*s), name=n) for n, s in (("w", (6, 3)), ("b", (3,))))
        self.slots = [tf.Variable(np.full((6, 3), 0.1, np.float32), name=f"slot{i}") for i in range(3)]

    def _gradient(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(x) @ self.w + self.b
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return loss, tape.gradient(loss, [self.w, self.b])

    @tf.function(input_signature=[tf.TensorSpec((None, 6), F), tf.TensorSpec((None,), I)])
    def train(self, x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        loss, (dw, db) = self._gradient(x, y)
        w, (a, b, c) = self.w.handle, (s.handle for s in self.slots)
        raw.ResourceApplyGradientDescent(var=self.b.handle, alpha=0.1, delta=db)
        raw.ResourceApplyMomentum(var=w, accum=a, lr=0.1, grad=dw, momentum=0.9, use_nesterov=True)
        raw.ResourceApplyKerasMomentum(var=w, accum=a, lr=0.1, grad=dw, momentum=0.9, use_nesterov=True)
        raw.ResourceApplyAdam(
            var=w, m=a, v=b, beta1_power=0.9, beta2_power=0.99, lr=0.01, beta1=0.9, beta2=0.99, epsilon=1e-3, grad=dw
        )
        raw.ResourceApplyAdaMax(var=w, m=a, v=b, beta1_power=0.9, lr=0.01, beta1=0.9, beta2=0.99, epsilon=1e-3, grad=dw)
        raw.ResourceApplyAdagrad(var=w, accum=b, lr=0.1, grad=dw)
        raw.ResourceApplyAdagradV2(var=w, accum=b, lr=0.1, epsilon=1e-3, grad=dw)
        raw.ResourceApplyRMSProp(var=w, ms=b, mom=a, lr=0.1, rho=0.9, momentum=0.5, epsilon=1e-3, grad=dw)
        raw.ResourceApplyCenteredRMSProp(
            var=w, mg=a, ms=b, mom=c, lr=0.01, rho=0.9, momentum=0.5, epsilon=1e-1, grad=dw
        )
        raw.ResourceApplyAdadelta(var=w, accum=b, accum_update=c, lr=0.1, rho=0.9, epsilon=1e-3, grad=dw)
        raw.ResourceApplyFtrlV2(
            var=w, accum=b, linear=a, grad=dw, lr=0.1, l1=0.01, l2=0.1, l2_shrinkage=0.01, lr_power=-0.5
        )
        return {"loss": loss, "weights": self.w.read_value(), "bias": self.b.read_value()}


class Found(tf.Module):
    """Values whose sizes data decides, in a branch and in a loop."""

    @tf.function(input_signature=[tf.TensorSpec((None,), F), tf.TensorSpec((), I)])
    def sizes(self, x: tf.Tensor, n: tf.Tensor) -> dict[str, tf.Tensor]:
        branch = tf.cond(n > 2, lambda: tf.boolean_mask(x, x > 0.0), lambda: x[:1] * 2.0)
        branch.set_shape((None,))

        def longer(i: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.concat([v, [tf.cast(i, F), tf.reduce_sum(v)]], 0)

        def while_few(i: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(i < n, tf.size(v) < 9)

        start = (tf.constant(0), tf.constant([1.5]))
        _, line = tf.while_loop(while_few, longer, start, (tf.TensorShape([]), tf.TensorShape([None])))
        return {"branch": branch + 1.0, "line": line * 2.0}
