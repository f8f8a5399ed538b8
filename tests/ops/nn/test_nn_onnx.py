"""MODEL ops against ONNX Runtime and, for ops that it lacks, the reference evaluator of ONNX."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Op
from tests.ops.nn.check import check

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
reference = pytest.importorskip("onnx.reference")

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def model(kind: str, inputs: list[np.ndarray | None], outputs: int, opset: int, **attributes: object):
    """A one-node model; None is an omitted input."""
    helper = onnx.helper
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    graph_inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    graph_outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    node = helper.make_node(kind, names, [v.name for v in graph_outputs], **attributes)
    graph = helper.make_graph([node], "g", graph_inputs, graph_outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def feed(inputs: list[np.ndarray | None]) -> dict[str, np.ndarray]:
    return {f"x{i}": x for i, x in enumerate(inputs) if x is not None}


def run_ort(kind: str, *inputs: np.ndarray | None, outputs: int = 1, opset: int = 19, **attributes: object) -> tuple:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    proto = model(kind, list(inputs), outputs, opset, **attributes)
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return tuple(session.run(None, feed(list(inputs))))


def run_reference(
    kind: str, *inputs: np.ndarray | None, outputs: int = 1, opset: int = 23, **attributes: object
) -> tuple:
    return tuple(
        reference.ReferenceEvaluator(model(kind, list(inputs), outputs, opset, **attributes)).run(
            None, feed(list(inputs))
        )
    )


def agree(op: Op, inputs: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...], scale: float = 1.0) -> None:
    check(op, *inputs, want=want, scale=scale)


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "dilations"),
    [
        ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
        ((3, 2), (2, 3), (1, 0, 2, 1), (1, 1)),
        ((2, 3), (1, 2), (0, 1, 1, 1), (2, 2)),
        ((2, 2), (3, 2), (0, 0, 0, 0), (1, 1)),
    ],
)
def test_pool(kernel: tuple, strides: tuple, pads: tuple, dilations: tuple, ceil: int) -> None:
    x = normal(1, 2, 9, 10)
    padding = tuple(zip(pads[:2], pads[2:], strict=True))
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": ceil, "dilations": dilations}
    agree(ops.MaxPool(kernel, strides, padding, dilations, bool(ceil)), (x,), run_ort("MaxPool", x, **attributes))
    for include in (0, 1):
        op = ops.AvgPool(kernel, strides, padding, dilations, bool(ceil), bool(include))
        agree(op, (x,), run_ort("AveragePool", x, count_include_pad=include, **attributes))
    if not ceil:
        agree(
            ops.LpPool(kernel, strides, padding, dilations, False, 3),
            (x,),
            run_ort("LpPool", x, p=3, opset=18, **attributes),
        )


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]
)
def test_resize_nearest(coordinates: str, nearest: str) -> None:
    x = normal(1, 2, 5, 7)
    sizes_tried = [(8, 4), (10, 21), (1, 13), (3, 1)]
    if coordinates == "half_pixel_symmetric" and nearest == "floor":
        # 5 to 3 has the coordinate 2 exactly, which ONNX Runtime computes as slightly less
        sizes_tried = [(8, 4), (10, 21)]
    for size in sizes_tried:
        sizes = np.asarray([1, 2, *size])
        options: dict[str, object] = {"mode": "nearest", "nearest_mode": nearest}
        options["coordinate_transformation_mode"] = coordinates
        want = run_ort("Resize", x, None, None, sizes, **options)  # type: ignore[arg-type]
        scales = tuple(float(np.float32(o) / np.float32(n)) for o, n in zip(size, (5, 7), strict=True))
        agree(ops.Resize(size, (2, 3), "nearest", coordinates, nearest, scales=scales), (x,), want)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]
)
def test_resize_smooth(coordinates: str, mode: str, exclude: int) -> None:
    x = normal(1, 2, 5, 7)
    exclude = exclude if mode == "cubic" else 0
    options = {"mode": mode, "coordinate_transformation_mode": coordinates, "exclude_outside": exclude}
    for scales in ((1.7, 0.8), (0.6, 2.0), (2.3, 1.5)):
        data = np.asarray([1, 1, *scales], np.float32)
        want = run_ort("Resize", x, None, data, **options)
        op = ops.Resize(want[0].shape[2:], (2, 3), mode, coordinates, exclude_outside=bool(exclude), scales=scales)
        agree(op, (x,), want)
    for size in ((8, 4), (3, 12)):
        want = run_ort("Resize", x, None, None, np.asarray([1, 2, *size]), **options)
        agree(ops.Resize(size, (2, 3), mode, coordinates, exclude_outside=bool(exclude)), (x,), want)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_antialias(mode: str, exclude: int) -> None:
    x = normal(1, 1, 9, 8)
    scales = (0.4, 0.7)
    options = {"mode": mode, "antialias": 1, "exclude_outside": exclude}
    want = run_reference("Resize", x, None, np.asarray([1, 1, *scales], np.float32), **options)
    op = ops.Resize(want[0].shape[2:], (2, 3), mode, antialias=True, exclude_outside=bool(exclude), scales=scales)
    agree(op, (x,), want, scale=3)


def test_resize_crop() -> None:
    x = normal(1, 1, 5, 7)
    roi = np.asarray([0, 0, 0.2, -0.2, 1, 1, 0.9, 1.1], np.float32)
    options = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.5}
    want = run_ort("Resize", x, roi, None, np.asarray([1, 1, 4, 6]), **options)
    op = ops.Resize((4, 6), (2, 3), "linear", "tf_crop_and_resize", roi=((0.2, 0.9), (-0.2, 1.1)), extrapolation=9.5)
    agree(op, (x,), want)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad(mode: str) -> None:
    x = normal(2, 4, 5)
    pads = np.asarray([0, 1, 3, 0, 2, 4])
    agree(ops.PadMode((0, 1, 3), (0, 2, 4), mode), (x,), run_ort("Pad", x, pads, mode=mode))


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    x, grid = normal(2, 2, 4, 5), normal(2, 3, 4, 2) * 1.2
    names = {"linear": "bilinear", "cubic": "bicubic"}
    attributes = {"mode": names.get(mode, mode), "padding_mode": padding, "align_corners": align}
    want = run_ort("GridSample", x, grid, opset=16, **attributes)
    agree(ops.GridSample(mode, padding, bool(align)), (x, grid), want, scale=4)


def test_activations() -> None:
    x = np.concatenate([normal(40) * 5, [0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    finite = x[np.isfinite(x)]
    agree(ops.HardSigmoid(0.3, 0.4), (x,), run_ort("HardSigmoid", x, alpha=0.3, beta=0.4))
    agree(ops.ThresholdedRelu(0.7), (x,), run_ort("ThresholdedRelu", x, alpha=0.7))
    agree(ops.Celu(0.8), (x,), run_ort("Celu", x, alpha=0.8))
    agree(ops.Softsign(), (finite,), run_ort("Softsign", finite))
    agree(ops.Selu(1.5, 1.2), (x,), run_ort("Selu", x, alpha=1.5, gamma=1.2))
    agree(ops.HardSwish(), (finite,), run_ort("HardSwish", finite))
    agree(ops.Gelu("tanh"), (finite,), run_ort("Gelu", finite, opset=20, approximate="tanh"))
    slope = normal(44)
    agree(ops.PRelu(), (x[:40], slope[:40]), run_ort("PRelu", x[:40], slope[:40]))


def test_norms() -> None:
    x = normal(2, 6, 4, 3)
    agree(ops.LocalResponseNorm(5, 0.1, 0.7, 2.0), (x,), run_ort("LRN", x, size=5, alpha=0.1, beta=0.7, bias=2.0))
    for p in (1, 2):
        agree(ops.LpNorm(1, p), (x,), run_ort("LpNormalization", x, axis=1, p=p))
    w, b = normal(4, 3), normal(4, 3)
    agree(ops.LayerNorm((2, 3), 1e-3), (x, w, b), run_ort("LayerNormalization", x, w, b, axis=2, epsilon=1e-3))
    want = run_reference("RMSNormalization", x, w, axis=2, epsilon=1e-3)
    agree(ops.RMSNorm((2, 3), 1e-3), (x, w), want)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_attention(softcap: float, causal: int) -> None:
    q, k, v, mask = normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 6), normal(5, 5) * 2
    want = run_reference("Attention", q, k, v, mask, scale=0.3, softcap=softcap, is_causal=causal)
    op = ops.Attention("upper_left" if causal else "none", 0.3, softcap)
    agree(op, (q, k, v, mask), want)


def test_indexing() -> None:
    x, at = normal(4, 5, 6), RNG.integers(-5, 5, (4, 3, 6))
    agree(ops.GatherElements(1), (x, at), run_ort("GatherElements", x, at, axis=1))
    rows = RNG.integers(-4, 4, (2, 3))
    agree(ops.Take(0), (x, rows), run_ort("Gather", x, rows, axis=0))
    points = RNG.integers(-4, 4, (3, 2, 2))
    agree(ops.GatherND(0), (x, points), run_ort("GatherND", x, points))
    batched = RNG.integers(-5, 5, (4, 2, 1))
    agree(ops.GatherND(1), (x, batched), run_ort("GatherND", x, batched, batch_dims=1))
    updates = normal(4, 3, 6)
    for reduction in ("add", "mul", "max", "min"):
        op = ops.ScatterElements(1, reduction)
        agree(op, (x, at, updates), run_ort("ScatterElements", x, at, updates, axis=1, reduction=reduction, opset=18))
        rows1, new = np.asarray([[0], [2], [-1], [0]]), normal(4, 5, 6)
        want = run_ort("ScatterND", x, rows1, new, reduction=reduction, opset=18)
        agree(ops.ScatterND(reduction), (x, rows1, new), want)
    ties = RNG.integers(0, 4, (3, 9)).astype(np.float32)
    for largest in (0, 1):
        want = run_ort("TopK", ties, np.asarray([5]), outputs=2, axis=1, largest=largest)
        agree(ops.TopK(5, 1, bool(largest)), (ties,), want)
    hot, values = np.asarray([[1, -1], [7, 0]]), np.asarray([-1, 3], np.float32)
    agree(ops.OneHot(1, 4), (hot, values), run_ort("OneHot", hot, np.asarray(4), values, axis=1))
    agree(ops.Trilu(False, -1), (x,), run_ort("Trilu", x, np.asarray(-1), upper=0))
    a, b = normal(2, 3, 4), normal(2, 4, 5)
    agree(ops.Einsum("bij,bjk->bik"), (a, b), run_ort("Einsum", a, b, equation="bij,bjk->bik"))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "GRU linear", "RNN"])
def test_recurrent(kind: str, direction: str) -> None:
    name = kind.split()[0]
    gates, states = {"LSTM": (4, 2), "GRU": (3, 1), "RNN": (1, 1)}[name]
    passes = 1 + (direction == "bidirectional")
    x = normal(5, 3, 2)
    parameters = (normal(passes, gates * 4, 2), normal(passes, gates * 4, 4), normal(passes, 2 * gates * 4))
    initial = tuple(normal(passes, 3, 4) for _ in range(states))
    lengths = np.asarray([5, 2, 3], np.int32)
    common: dict[str, object] = {"hidden_size": 4, "direction": direction}
    options: dict[str, object] = {"linear_before_reset": True} if "linear" in kind else {}
    if options:
        common["linear_before_reset"] = 1
    for clip in (None, 0.5):
        if clip is not None:
            common["clip"] = clip
        op = getattr(ops, name)(4, direction, clip, has_lengths=True, **options)
        want = run_ort(name, x, *parameters, lengths, *initial, outputs=1 + states, opset=14, **common)
        agree(op, (x, *parameters, *initial, lengths), want)
    if name == "LSTM":
        peephole = normal(passes, 12)
        want = run_ort(name, x, *parameters, lengths, *initial, peephole, outputs=3, opset=14, **common)
        op = ops.LSTM(4, direction, 0.5, has_lengths=True, has_peephole=True)
        agree(op, (x, *parameters, *initial, lengths, peephole), want)
        want = run_ort(name, x, *parameters, lengths, *initial, outputs=3, opset=14, input_forget=1, **common)
        agree(
            ops.LSTM(4, direction, 0.5, has_lengths=True, input_forget=True), (x, *parameters, *initial, lengths), want
        )


def test_recurrent_activations() -> None:
    x, initial = normal(4, 2, 3), normal(1, 2, 4)
    parameters = (normal(1, 4, 3), normal(1, 4, 4), normal(1, 8))
    cases = {
        "Relu": (),
        "Affine": (0.7, 0.3),
        "LeakyRelu": (0.2,),
        "ThresholdedRelu": (0.4,),
        "ScaledTanh": (1.3, 0.7),
        "HardSigmoid": (0.3, 0.4),
        "Elu": (0.6,),
        "Softsign": (),
        "Softplus": (),
        "Sigmoid": (),
    }
    for name, numbers in cases.items():
        attributes = dict(zip(("activation_alpha", "activation_beta"), ([v] for v in numbers), strict=False))
        want = run_ort(
            "RNN", x, *parameters, None, initial, outputs=2, opset=14, hidden_size=4, activations=[name], **attributes
        )
        alpha, beta = (*numbers, 0.0, 0.0)[:2]
        op = ops.RNN(4, activations=((name.lower(), alpha, beta),))
        agree(op, (x, *parameters, initial), want)
