"""Sums of products: dot, dot_general, convolution. Complex ones are four real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_equal
from ingot.frontends.stablehlo.syntax import Raw
from ingot.frontends.stablehlo.values import Call, Table
from ingot.ir.node import Node
from ingot.ir.types import DType, boolean, f32

row, on_complex = Table(), Table()

Sides = tuple[tuple[int, ...], tuple[int, ...]]


def _tf32(c: Call) -> bool | None:
    """`tf32`: multiply-adds of f32 where both operands' precision is HIGHEST, else it is left to the compiler."""
    config = c.attributes.get("precision_config")
    precisions = [p.text for p in config if isinstance(p, Raw)] if isinstance(config, list | tuple) else []
    return False if precisions and all("HIGHEST" in p for p in precisions) else None


def product(
    a: Node, b: Node, batch: Sides, contract: Sides, dtype: DType, loc: str = "", tf32: bool | None = None
) -> Node:
    """dot_general with sums in `dtype`."""
    if boolean in (a.dtype, b.dtype):
        counts = product(ops.cast(a, f32), ops.cast(b, f32), batch, contract, f32, loc)
        return ops.cast(ops.compare("NE", counts, 0.0), dtype, loc)
    if a.dtype != b.dtype or a.dtype.is_float != dtype.is_float or (not dtype.is_float and a.dtype != dtype):
        a, b = ops.cast(a, dtype), ops.cast(b, dtype)
    return ops.DotGeneral(batch, contract, None if dtype == a.dtype else dtype, tf32=tf32)(a, b, loc=loc)


def _dims(c: Call, lhs_rank: int, rhs_rank: int) -> tuple[Sides, Sides]:
    """(batching, contracting) axes of operands of these ranks."""
    if c.op.name == "stablehlo.dot":
        if not lhs_rank or not rhs_rank:
            raise Unsupported("of a scalar")
        return ((), ()), ((lhs_rank - 1,), (0,))
    d = c.fields("dot_dimension_numbers")

    def axes(kind: str) -> Sides:
        return d.axes(f"lhs_{kind}_dimensions", lhs_rank, ()), d.axes(f"rhs_{kind}_dimensions", rhs_rank, ())

    return axes("batching"), axes("contracting")


@row("dot", "dot_general")
def dot_general(c: Call, a: Node, b: Node) -> Node:
    batch, contract = _dims(c, a.type.rank, b.type.rank)
    for lhs_axes, rhs_axes in (batch, contract):
        require_equal([a.shape[d] for d in lhs_axes], [b.shape[d] for d in rhs_axes], c.op.name)
    return product(a, b, batch, contract, c.dtype, c.loc, _tf32(c))


@on_complex("dot", "dot_general")
def complex_dot(c: Call, a: object, b: object) -> Complex:
    return _four(lambda x, y: dot_general(c, x, y), a, b)


def _four(of: Callable[[Node, Node], Node], a: object, b: object) -> Complex:
    if not isinstance(a, Complex) or not isinstance(b, Complex):
        raise Unsupported("of a complex and a real operand")
    return Complex(ops.Sub()(of(a.real, b.real), of(a.imag, b.imag)), ops.Add()(of(a.real, b.imag), of(a.imag, b.real)))


_SPATIAL = "DHWXYZABEFGJKLPQRSTUV"


def convolution_of(c: Call, a: Node, b: Node, padding: tuple[tuple[int, int], ...]) -> Node:
    layouts = _layouts(c.raw("dimension_numbers"))
    n = len(layouts[0]) - 2
    # the op's attributes are in the order of x's spatial axes
    order = [_SPATIAL.index(s) for s in layouts[0] if s in _SPATIAL]
    steps, base, window = (
        tuple(c.per_axis(name, n, 1)[i] for i in order) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    op = ops.Convolution(
        steps, tuple(padding[i] for i in order), base, window, *layouts,
        c.int("feature_group_count", 1), c.int("batch_group_count", 1), tf32=_tf32(c),
    )  # fmt: skip
    flipped = c.per_axis("window_reversal", n, 0)
    if any(flipped):
        letters = _SPATIAL[:n]
        b = ops.Reverse(tuple(layouts[1].index(letters[i]) for i in range(n) if flipped[i]))(b)
    dtype = c.dtype
    if boolean in (a.dtype, b.dtype):
        raise Unsupported("of booleans")
    if a.dtype != b.dtype or (not dtype.is_float and a.dtype != dtype) or a.dtype.is_float != dtype.is_float:
        a, b = ops.cast(a, dtype), ops.cast(b, dtype)
    if op.feature_groups > 1 and op.batch_groups > 1:
        raise Unsupported("groups of features and of batches")
    return replace(op, dtype=None if dtype == a.dtype else dtype)(a, b, loc=c.loc)


def _layouts(text: str) -> tuple[str, str, str]:
    """#stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]> in letters: NCDH, OIDH, NCDH."""
    groups = [g.partition("]")[0].split(",") for g in text.split("[")[1:]]
    letters = {"b": "N", "f": "C", "o": "O", "i": "I", **{str(i): letter for i, letter in enumerate(_SPATIAL)}}
    if len(groups) != 3 or any(d.strip() not in letters for g in groups for d in g):
        raise Unsupported(f"dimension_numbers = {text}")
    x, w, y = ("".join(letters[d.strip()] for d in g) for g in groups)
    spatial = _SPATIAL[: max(len(x) - 2, 0)]
    if [sorted(layout) for layout in (x, w, y)] != [sorted(f"{pair}{spatial}") for pair in ("NC", "OI", "NC")]:
        raise Unsupported(f"dimension_numbers = {text}")
    return x, w, y


@row("convolution")
def convolution(c: Call, a: Node, b: Node) -> Node:
    return convolution_of(c, a, b, c.pairs("padding", a.type.rank - 2))


@row("dynamic_conv")
def dynamic_conv(c: Call, a: Node, b: Node, padding: Node) -> Node:
    """Padding that is an operand: symbolic padding is a separate pad."""
    amounts = c.sizes(padding)
    pairs = tuple(zip(amounts[::2], amounts[1::2], strict=True))
    fixed = tuple((low, high) for low, high in pairs if isinstance(low, int) and isinstance(high, int))
    if len(fixed) == len(pairs):
        return convolution_of(c, a, b, fixed)
    layout = _layouts(c.raw("dimension_numbers"))[0]
    if any(d != 1 for d in c.ints("lhs_dilation", (1,))):
        raise Unsupported("padding that depends on sizes beside a dilated operand")
    by = dict(zip(_SPATIAL, pairs, strict=False))
    low, high = (tuple(by[s][i] if s in by else 0 for s in layout) for i in (0, 1))
    return convolution_of(c, ops.pad(a, low, high), b, ((0, 0),) * len(pairs))


@on_complex("convolution", "dynamic_conv")
def complex_convolution(c: Call, a: object, b: object, *rest: Node) -> Complex:
    of = dynamic_conv if rest else convolution
    return _four(lambda x, y: of(c, x, y, *rest), a, b)
