"""Nodes of opsets 1 to 6 rewritten as in opset 7, so that rows and folding rules see one form.

Add(a, b, axis=1, broadcast=1)   ->   Add(a, b reshaped to [C, 1, 1])
Reshape(x, shape=[2, 3])         ->   Reshape(x, [2, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import AnyValue, Call, Value
from ingot.frontends.onnx.protos import NodeProto, TensorProto
from ingot.frontends.onnx.symbolic import Sym
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.types import Shape

OPSET = 7


def modern(c: Call) -> Call:
    """The call as one of opset 7. Raises Unsupported where it has no such form."""
    upgrade = _UPGRADES.get(c.proto.op_type)
    return c if upgrade is None else upgrade(c)


def _changed_call(c: Call, inputs: Sequence[AnyValue | None] | None = None, **attributes: object) -> Call:
    """The call with `inputs` in place of its own, and with some attributes set."""
    from onnx import helper

    proto = NodeProto()
    proto.CopyFrom(c.proto)
    del proto.attribute[:]
    proto.attribute.extend(a for a in c.proto.attribute if a.name not in attributes)
    proto.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return replace(c, proto=proto, inputs=c.inputs if inputs is None else tuple(inputs))


def _numbers(values: Sequence[int]) -> Value:
    return Value(sym=Sym.of_array(np.asarray(values, np.int64)))


def _reshaped(v: Value, shape: Shape) -> Value:
    if v.sym is not None:
        return Value(sym=Sym(v.sym.dtype, v.sym.items.reshape(shape)))
    return Value(ops.reshape(v.node, shape))


def _aligned(c: Call, axis: int) -> Call:
    """The call with its second operand reshaped so that its first axis lines up with `axis` of the first."""
    trailing = c.rank(0) - axis - c.rank(1)
    if trailing < 0:
        raise Unsupported(f"operands {c.type(0)} and {c.type(1)} aligned at axis {axis}")
    return _changed_call(c, (c.inputs[0], _reshaped(c.value(1), (*c.shape(1), *(1,) * trailing))))


def _binary(c: Call) -> Call:
    if not c.flag("broadcast") or not c.has_attr("axis"):
        return c
    return _aligned(c, c.axis("axis", None, c.rank(0)))


def _prelu(c: Call) -> Call:
    """A slope per channel."""
    return _aligned(c, 1) if c.rank(1) == 1 and c.rank(0) > 1 and c.shape(1) != (1,) else c


def _reshape(c: Call) -> Call:
    return c if c.has(1) else _changed_call(c, (c.inputs[0], _numbers(c.int_list("shape"))))


def _cast(c: Call) -> Call:
    type_name = c.attr("to")
    if not isinstance(type_name, str):
        return c
    code = dict(TensorProto.DataType.items()).get(type_name.upper())
    if code is None:
        raise Unsupported(f"element type {type_name!r}")
    return _changed_call(c, to=code)


def _tile(c: Call) -> Call:
    if c.version >= 6:
        return c
    repeats = [1] * c.rank(0)
    repeats[c.ints(2)[0]] = c.ints(1)[0]
    return _changed_call(c, (c.inputs[0], _numbers(repeats)))


def _upsample(c: Call) -> Call:
    mode = c.str("mode", "nearest")
    scales = [1.0, 1.0, c.float("height_scale"), c.float("width_scale")]
    return _changed_call(c, scales=scales, mode="linear" if mode == "bilinear" else mode)


def _norm(c: Call) -> Call:
    p = c.float("p", 2.0)
    if not p.is_integer():
        raise Unsupported(f"a norm of {p:g}")
    return _changed_call(c, p=int(p))


def _selu(c: Call) -> Call:
    if c.version >= 6:
        return c
    return _changed_call(c, alpha=c.float("alpha", 1.6732), gamma=c.float("gamma", 1.0507))


_UPGRADES: dict[str, Callable[[Call], Call]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), _binary),
    "Cast": _cast, "GlobalLpPool": _norm, "LpPool": _norm, "PRelu": _prelu, "Reshape": _reshape, "Selu": _selu,
    "Tile": _tile, "Upsample": _upsample,
}  # fmt: skip
