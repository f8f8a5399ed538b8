"""Random ONNX graphs by seed, for `tools/fuzz.py onnx-graphs`: compiled, run and compared with ONNX Runtime.

A graph grows node by node from values that exist, of odd and equal sizes, of size 1 and sometimes 0; ONNX's own shape
inference says which nodes are valid and what they give. Half of the graphs leave the sizes of their inputs open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
_SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17)
_LARGEST = 20_000  # elements of a value
_F32, _I64, _I32, _BOOL, _U8 = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8,
)  # fmt: skip
_ONNX_ERRORS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Value:
    name: str
    type: int
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Grower:
    """The graph under construction."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)

    def one(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def below(self, count: int) -> int:
        return int(self.rng.integers(max(count, 1)))

    def pick(self, accepts: Callable[[Value], bool]) -> Value:
        """A value, later ones more often; a new input where there is none. Raises LookupError for no rank that fits."""
        found = [v for v in self.values if accepts(v)]
        if found and self.rng.random() < 0.9:
            weights = np.linspace(1, 4, len(found))
            return found[int(self.rng.choice(len(found), p=weights / weights.sum()))]
        for _ in range(9):
            shape = self.shape()
            for type in (_F32, _I64, _BOOL, _I32):
                if accepts(Value("", type, shape)):
                    return self.input(type, shape)
        raise LookupError

    def floats(self, *ranks: int) -> Value:
        return self.pick(lambda v: v.type == _F32 and (not ranks or v.rank in ranks))

    def size(self) -> int:
        return 0 if self.rng.random() < 0.015 else int(self.rng.choice(_SIZES))

    def shape(self) -> tuple[int, ...]:
        out: list[int] = []
        for _ in range(int(self.rng.choice([0, 1, 2, 2, 3, 3, 4, 4, 5]))):
            out.append(self.size())
            out[-1] = 1 if prod(out) > _LARGEST // 4 else out[-1]
        return tuple(out)

    def input(self, type: int, shape: tuple[int, ...]) -> Value:
        value = Value(f"x{len(self.inputs)}", type, shape)
        self.feeds[value.name] = self.data(type, shape)  # raises for a type that it does not draw
        self.inputs.append(value)
        self.values.append(value)
        return value

    def data(self, type: int, shape: tuple[int, ...]) -> np.ndarray:
        if type == _BOOL:
            return self.rng.random(shape) < 0.5
        if type == _F32:
            return (self.rng.normal(size=shape) * self.one(1, 1, 4)).astype(np.float32)
        return self.rng.integers(0 if type == _U8 else -5, 6, shape).astype(helper.tensor_dtype_to_np_dtype(type))

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.normal(size=shape) / max(1, prod(shape[1:])) ** 0.5, np.float32)

    def axis(self, v: Value) -> int:
        """One of a value's axes, counted from either end. Raises LookupError for a scalar."""
        if not v.rank:
            raise LookupError
        return int(self.rng.integers(-v.rank, v.rank))

    def axes(self, v: Value) -> list[int]:
        chosen = self.rng.choice(v.rank, self.below(v.rank) + 1, False).tolist() if v.rank else []
        return [int(a) - (v.rank if self.rng.random() < 0.3 else 0) for a in chosen]

    def like(self, v: Value) -> Value:
        """A value that broadcasts with another one."""
        same = [u for u in self.values if u.type == v.type and (u.shape == v.shape or not u.rank)]
        if same and self.rng.random() < 0.6:
            return same[self.below(len(same))]
        kept = v.shape[self.below(v.rank + 1) :]
        return self.input(v.type, tuple(n if self.rng.random() < 0.7 else 1 for n in kept))

    def add(self, op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> None:
        """A node, where ONNX's shape inference accepts it and knows all about its results; else nothing."""
        names = [v.name if isinstance(v, Value) else v for v in inputs]
        results = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op, names, results, **attributes)
        known = {n for n in names if n}
        typed = [helper.make_tensor_value_info(v.name, v.type, v.shape) for v in self.values if v.name in known]
        held = [c for c in self.constants if c.name in known]
        empty = [helper.make_empty_tensor_value_info(name) for name in results]
        small = helper.make_model(
            helper.make_graph([node], "g", typed, empty, held), opset_imports=[helper.make_opsetid("", OPSET)]
        )
        found = onnx.shape_inference.infer_shapes(small, check_type=True, strict_mode=True, data_prop=True).graph.output
        made = [Value(o.name, o.type.tensor_type.elem_type, _static(o.type.tensor_type)) for o in found]
        if any(prod(v.shape) > _LARGEST for v in made):
            raise LookupError
        self.nodes.append(node)
        self.values += made


def _static(type: onnx.TypeProto.Tensor) -> tuple[int, ...]:
    if not type.HasField("shape") or any(not d.HasField("dim_value") for d in type.shape.dim):
        raise LookupError
    return tuple(d.dim_value for d in type.shape.dim)


_UNARY = (
    "Relu", "Sigmoid", "Tanh", "Erf", "Neg", "Abs", "Floor", "Ceil", "Round", "Softplus", "Elu", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Selu", "Sign", "Cos", "Sin", "Softsign", "Mish", "Gelu", "Celu", "ThresholdedRelu",
    "Identity", "Exp", "Atan", "IsNaN", "IsInf", "Sqrt", "Reciprocal", "Asinh",
)  # fmt: skip
_FOLDS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
    "ReduceSumSquare",
)  # fmt: skip
_INTS = (_I64, _I32)


def _unary(g: Grower) -> None:
    g.add(g.one(*_UNARY), [g.floats()])


def _binary(g: Grower) -> None:
    a = g.pick(lambda v: v.type in (_F32, *_INTS))
    op = g.one(
        "Add",
        "Sub",
        "Mul",
        "Max",
        "Min",
        *(("Div", "Less", "GreaterOrEqual", "Equal") if a.type == _F32 else ("Less",)),
    )
    b = g.like(a)
    g.add(op, g.one([a, b], [b, a]))


def _divide(g: Grower) -> None:
    a = g.pick(lambda v: v.type in _INTS)
    op = g.one("Div", "Mod")
    array = g.rng.choice([-3, -2, 2, 3, 5], (1,))
    g.add(op, [a, g.constant(array, helper.tensor_dtype_to_np_dtype(a.type))])


def _where(g: Grower) -> None:
    a = g.floats()
    condition = g.pick(lambda v: v.type == _BOOL and (v.shape == a.shape or not v.rank))
    g.add("Where", [condition, a, g.like(a)])


def _cast(g: Grower) -> None:
    v = g.pick(lambda v: v.type in (_F32, _BOOL, *_INTS))
    to = g.one(_F32, _I64, _I32, _BOOL)
    g.add("Cast", [v], to=to)


def _fold(g: Grower) -> None:
    v = g.floats()
    axes = g.axes(v)
    g.add(g.one(*_FOLDS), [v, g.constant(axes)] if axes else [v], keepdims=g.below(2))


def _arg(g: Grower) -> None:
    v = g.floats()
    g.add(g.one("ArgMax", "ArgMin"), [v], axis=g.axis(v), keepdims=g.below(2), select_last_index=g.below(2))


def _line(g: Grower) -> None:
    v = g.floats()
    op = g.one("Softmax", "LogSoftmax", "Hardmax", "CumSum", "LpNormalization")
    if op == "CumSum":
        g.add(op, [v, g.constant(g.axis(v))], exclusive=g.below(2), reverse=g.below(2))
    else:
        g.add(op, [v], axis=g.axis(v))


def _transpose(g: Grower) -> None:
    v = g.pick(lambda v: v.rank > 1)
    g.add("Transpose", [v], perm=g.rng.permutation(v.rank).tolist())


def _reshape(g: Grower) -> None:
    v = g.pick(lambda v: v.rank > 0)
    match g.below(4):
        case 0:
            g.add("Flatten", [v], axis=g.axis(v))
        case 1:
            g.add("Unsqueeze", [v, g.constant([g.axis(v)])])
        case 2:
            ones = [i for i, n in enumerate(v.shape) if n == 1]
            g.add("Squeeze", [v, g.constant(ones[: g.below(len(ones)) + 1])] if ones else [v])
        case _:
            at = g.below(v.rank - 1)
            merged = [*v.shape[:at], -1, *v.shape[at + 2 :]] if v.rank > 1 and all(v.shape) else [-1]
            g.add("Reshape", [v, g.constant(merged)])


def _join(g: Grower) -> None:
    v = g.pick(lambda v: v.rank > 0)
    axis = g.axis(v)
    others = [u for u in g.values if u.type == v.type and u.rank == v.rank and _equal_but(u, v, axis % v.rank)]
    g.add("Concat", [v, *(g.one(*others) for _ in range(g.below(3) + 1))], axis=axis)


def _equal_but(u: Value, v: Value, axis: int) -> bool:
    return all(a == b for i, (a, b) in enumerate(zip(u.shape, v.shape, strict=True)) if i != axis)


def _split(g: Grower) -> None:
    v = g.pick(lambda v: v.rank > 0)
    axis = g.axis(v)
    count = min(g.below(3) + 1, max(1, v.shape[axis]))
    g.add("Split", [v], count, axis=axis, num_outputs=count)


def _slice(g: Grower) -> None:
    v = g.pick(lambda v: v.rank > 0)
    axes = g.axes(v)
    starts, ends = (g.rng.choice([-100, -3, -2, -1, 0, 1, 2, 3, 100], len(axes)) for _ in range(2))
    g.add(
        "Slice",
        [
            v,
            g.constant(starts),
            g.constant(ends),
            g.constant(axes),
            g.constant(g.rng.choice([1, 1, 2, -1, -2, 3], len(axes))),
        ],
    )


def _pad(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and 0 < v.rank < 5)
    mode = g.one("constant", "edge", "reflect", "wrap")
    low, high = (0, 3) if mode == "constant" else (0, 2)
    amounts = g.rng.integers(low - (mode == "constant" and g.below(2)), high, 2 * v.rank)
    if mode != "constant" and min(v.shape) <= int(amounts.max()):
        raise LookupError
    g.add("Pad", [v, g.constant(amounts)], mode=mode)


def _repeat(g: Grower) -> None:
    v = g.pick(lambda v: v.rank > 0)
    if g.below(2):
        g.add("Tile", [v, g.constant(g.rng.integers(1, 4, v.rank))])
    else:
        shape = [g.size() if n == 1 else n for n in v.shape]
        g.add("Expand", [v, g.constant([*g.one((), (2,)), *shape])])


def _gather(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank > 0 and min(v.shape) > 0)
    axis = g.axis(v)
    n = v.shape[axis]
    match g.below(4):
        case 0:
            g.add("Gather", [v, g.constant(g.rng.integers(-n, n, g.shape()[:2]))], axis=axis)
        case 1:
            shape = [1 + g.below(s) if i != axis % v.rank else 1 + g.below(5) for i, s in enumerate(v.shape)]
            g.add("GatherElements", [v, g.constant(g.rng.integers(-n, n, shape))], axis=axis)
        case 2:
            depth = g.below(v.rank) + 1
            at = np.stack([g.rng.integers(-s, s, (g.below(4) + 1,)) for s in v.shape[:depth]], -1)
            g.add("GatherND", [v, g.constant(at)])
        case _:
            rows = g.rng.permutation(n)[: g.below(n) + 1]
            shape = [len(rows) if i == axis % v.rank else s for i, s in enumerate(v.shape)]
            at = np.broadcast_to(rows.reshape([-1 if i == axis % v.rank else 1 for i in range(v.rank)]), shape)
            updates = g.input(_F32, tuple(shape))
            g.add("ScatterElements", [v, g.constant(at), updates], axis=axis, reduction=g.one("none", "add", "max"))


def _order(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank > 0 and v.shape[-1] > 0)
    match g.below(3):
        case 0:
            g.add("TopK", [v, g.constant([1 + g.below(v.shape[-1])])], 2, largest=g.below(2))
        case 1 if v.rank > 1:
            g.add("Trilu", [v, g.constant(g.one(-2, 0, 1, 9))], upper=g.below(2))
        case _:
            index = g.pick(lambda v: v.type in _INTS)
            g.add("OneHot", [index, g.constant(5), g.constant([0.5, 2], np.float32)], axis=g.one(-1, 0))


def _product(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank > 0)
    if g.below(2):
        g.add("MatMul", [v, g.weight(v.shape[-1], g.one(1, 3, 8, 17))])
    elif v.rank == 2:
        is_turned = g.below(2)
        rows = v.shape[0] if is_turned else v.shape[1]
        g.add("Gemm", [v, g.weight(rows, 5), g.weight(5)], transA=is_turned, alpha=0.5, beta=g.one(0.0, 2.0))
    else:
        others = [u for u in g.values if u.type == _F32 and u.rank == v.rank > 1 and u.shape[-2] == v.shape[-1]]
        g.add("MatMul", [v, g.one(*others)] if others else [v, g.weight(v.shape[-1])])


def _convolution(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank in (3, 4, 5) and min(v.shape[2:]) > 2 and v.shape[1] > 0)
    spatial, channels = v.rank - 2, v.shape[1]
    kernel = g.rng.integers(1, 4, spatial).tolist()
    group = g.one(1, 1, channels)
    pads = g.rng.integers(0, 3, 2 * spatial).tolist()
    common = {"strides": g.rng.integers(1, 3, spatial).tolist(), "dilations": g.rng.integers(1, 3, spatial).tolist()}
    if g.below(3):
        out = group * g.one(1, 2, 3)
        placed = g.one({"pads": pads}, {"auto_pad": g.one("SAME_UPPER", "SAME_LOWER", "VALID")})
        if "auto_pad" in placed:
            common["dilations"] = [1] * spatial
        g.add(
            "Conv",
            [v, g.weight(out, channels // group, *kernel), *g.one([], [g.weight(out)])],
            group=group,
            **placed,
            **common,
        )
    else:
        g.add(
            "ConvTranspose",
            [v, g.weight(channels, g.one(1, 3), *kernel)],
            group=group,
            pads=[0] * (2 * spatial),
            **common,
        )


def _pool(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank in (3, 4, 5) and min(v.shape) > 0)
    spatial = v.rank - 2
    op = g.one("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):
        return g.add(op, [v])
    kernel = g.rng.integers(1, 4, spatial)
    pads = np.concatenate([g.rng.integers(0, kernel), g.rng.integers(0, kernel)]).tolist()
    options: dict[str, Any] = {"strides": g.rng.integers(1, 4, spatial).tolist(), "pads": pads, "ceil_mode": g.below(2)}
    options |= {"count_include_pad": g.below(2)} if op == "AveragePool" else {}
    options |= {"dilations": g.rng.integers(1, 3, spatial).tolist()} if op == "MaxPool" else {}
    return g.add(op, [v], kernel_shape=kernel.tolist(), **options)


def _normalize(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank > 1 and v.shape[1] > 0)
    channels = v.shape[1]
    match g.below(4):
        case 0:
            axis = g.axis(v)
            shape = v.shape[axis % v.rank :]
            g.add("LayerNormalization", [v, g.weight(*shape), g.weight(*shape)], axis=axis)
        case 1 if v.rank > 2:
            g.add("InstanceNormalization", [v, g.weight(channels), g.weight(channels)])
        case 2:
            variance = g.constant(g.rng.random(channels) + 0.1, np.float32)
            g.add("BatchNormalization", [v, *(g.weight(channels) for _ in range(3)), variance])
        case _:
            g.add("LRN", [v], size=g.one(1, 3, 5), alpha=0.1)


def _image(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank == 4 and min(v.shape) > 0)
    if g.below(2):
        scales = g.constant([1, 1, g.one(0.5, 1.5, 2.0, 3.0, 0.7), g.one(1.0, 2.0, 0.6)], np.float32)
        mode = g.one("nearest", "linear", "cubic")
        way = g.one("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        g.add(
            "Resize",
            [v, "", scales],
            mode=mode,
            coordinate_transformation_mode=way,
            nearest_mode=g.one("floor", "round_prefer_floor"),
        )
    else:
        grid = g.input(_F32, (v.shape[0], 3, 5, 2))
        g.add(
            "GridSample",
            [v, grid],
            mode=g.one("linear", "nearest"),
            padding_mode=g.one("zeros", "border"),
            align_corners=g.below(2),
        )


def _recurrent(g: Grower) -> None:
    v = g.pick(lambda v: v.type == _F32 and v.rank == 3 and min(v.shape) > 0)
    op, gates = g.one(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    hidden, ways = g.one(3, 8), g.one(1, 2)
    weights = [g.weight(ways, gates * hidden, n) for n in (v.shape[2], hidden)]
    g.add(
        op,
        [v, *weights],
        2,
        hidden_size=hidden,
        direction="bidirectional" if ways == 2 else g.one("forward", "reverse"),
    )


GROWTHS = (
    *[_unary] * 4, *[_binary] * 4, _divide, _where, _cast, *[_fold] * 2, _arg, *[_line] * 2, *[_transpose] * 2,
    *[_reshape] * 3, *[_join] * 2, _split, *[_slice] * 2, *[_pad] * 2, _repeat, *[_gather] * 2, _order, *[_product] * 3,
    *[_convolution] * 2, *[_pool] * 2, *[_normalize] * 2, _image, _recurrent,
)  # fmt: skip


def random_model(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model, and values for its inputs."""
    g = Grower(np.random.default_rng(seed))
    g.input(_F32, g.shape())
    for _ in range(4 + g.below(14)):
        try:
            g.one(*GROWTHS)(g)
        except (LookupError, *_ONNX_ERRORS):
            continue
    made = g.values[-1 - g.below(len(g.nodes)) :] if g.nodes else g.values
    results = [v for v in {v.name: v for v in (*g.rng.permutation(np.array(g.values, object))[:2], *made)}.values()]
    names = {n for node in g.nodes for n in node.input} | {v.name for v in results}
    inputs = [v for v in g.inputs if v.name in names]
    is_open = g.below(2)
    types = [
        helper.make_tensor_value_info(
            v.name, v.type, [f"{v.name}_{i}" if is_open and g.rng.random() < 0.7 else n for i, n in enumerate(v.shape)]
        )
        for v in inputs
    ]
    outs = [helper.make_tensor_value_info(f"y{i}", v.type, None) for i, v in enumerate(results)]
    copies = [helper.make_node("Identity", [v.name], [f"y{i}"]) for i, v in enumerate(results)]
    graph = helper.make_graph([*g.nodes, *copies], "g", types, outs, g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return model, {v.name: g.feeds[v.name] for v in inputs}
