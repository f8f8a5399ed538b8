"""Complex tensors as pairs of real ones, handled by the rows of real tensors where an op is linear.

An op that only moves or adds elements is applied to both parts; one that is linear in each operand (a product) is a sum
over choices of a part of each operand. All others have a row here. `complex_handler` picks the case.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from ingot import ops
from ingot.frontends.shared.composites import complex as functions
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.elementwise import compare, select
from ingot.frontends.torch.aten.shape import reshape, select_index
from ingot.frontends.torch.table import Handler, Table
from ingot.frontends.torch.values import (
    Complex,
    Context,
    Number,
    aligned,
    cast,
    node_of,
    scalar_like,
)
from ingot.ir.dims import Dim
from ingot.ir.node import Node

# ops that build complex tensors from real ones
aten = Table()
# ops that take complex tensors
on_complex = Table()

# op -> positions of the operands in which it is jointly linear: f(2a, 2b) = 2 f(a, b)
_LINEAR: dict[str, tuple[int, ...]] = {
    "add.Tensor": (0, 1), "add.Scalar": (0, 1), "sub.Tensor": (0, 1), "sub.Scalar": (0, 1), "rsub.Scalar": (0, 1),
    "rsub.Tensor": (0, 1), "where.self": (1, 2), "where.ScalarSelf": (1, 2), "where.ScalarOther": (1, 2),
    "masked_fill.Scalar": (0, 2), "masked_fill.Tensor": (0, 2), "constant_pad_nd.default": (0, 2),
    "pad.default": (0, 3), "index_put.default": (0, 2), "_unsafe_index_put.default": (0, 2),
    "index_add.default": (0, 3), "index_copy.default": (0, 3), "scatter.src": (0, 3), "scatter_add.default": (0, 3),
    "slice_scatter.default": (0, 1), "select_scatter.default": (0, 1), "copy.default": (0, 1),
    "diagonal_scatter.default": (0, 1), "masked_scatter.default": (0, 2), "scatter.value": (0, 3),
    "index_fill.int_Scalar": (0, 3), "index_fill.int_Tensor": (0, 3),
}  # fmt: skip
# ops that are linear in their first operand
_LINEAR_IN_FIRST = frozenset((
    "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int", "view_as.default",
    "reshape_as.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "ravel.default",
    "_reshape_alias.default", "clone.default", "contiguous.default", "detach.default", "alias.default",
    "lift_fresh.default", "lift_fresh_copy.default", "resolve_conj.default", "resolve_neg.default",
    "to.dtype", "_to_copy.default", "type_as.default", "to.dtype_layout", "expand.default", "expand_as.default",
    "permute.default", "transpose.int", "swapaxes.default", "t.default", "numpy_T.default", "mT.default", "movedim.int",
    "movedim.intlist", "cat.default", "concat.default", "stack.default", "hstack.default", "vstack.default",
    "split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int", "select.int", "slice.Tensor",
    "narrow.default", "repeat.default", "tile.default", "repeat_interleave.self_int", "roll.default", "flip.default",
    "rot90.default", "diagonal.default", "diagonal_copy.default", "diag.default",
    "index.Tensor", "index_select.default", "gather.default",
    "take_along_dim.default", "embedding.default", "tril.default", "triu.default", "as_strided.default",
    "unfold.default", "zeros_like.default", "new_zeros.default", "empty_like.default", "new_empty.default",
    "new_empty_strided.default", "zero.default",
    "neg.default", "_neg_view.default", "_neg_view_copy.default", "sum.default", "sum.dim_IntList", "mean.default",
    "mean.dim", "cumsum.default", "diff.default",
    "broadcast_to.default", "broadcast_tensors.default", "prims.convert_element_type.default", "squeeze_copy.dim",
    "view_copy.default", "fft_fftshift.default", "fft_ifftshift.default",
    "alias_copy.default", "detach_copy.default", "expand_copy.default", "permute_copy.default", "t_copy.default",
    "transpose_copy.int", "unsqueeze_copy.default", "squeeze_copy.default", "squeeze_copy.dims", "select_copy.int",
    "slice_copy.Tensor", "narrow_copy.default", "split_copy.Tensor", "split_with_sizes_copy.default",
    "unbind_copy.int", "_reshape_copy.default", "concatenate.default", "split.sizes", "hsplit.int", "vsplit.int",
    "tensor_split.indices", "tensor_split.sections", "unsafe_split.Tensor", "unsafe_split_with_sizes.default",
    "unsafe_chunk.default", "swapdims.default", "moveaxis.int", "moveaxis.intlist", "fliplr.default", "flipud.default",
    "atleast_1d.default", "atleast_2d.default", "atleast_3d.default", "meshgrid.default", "meshgrid.indexing",
    "linalg_diagonal.default", "take.default", "lift.default", "_unsafe_index.Tensor",
))  # fmt: skip

_CONVOLUTIONS = (
    "convolution.default", "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding",
    "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
)  # fmt: skip
# op -> positions of the operands in each of which it is linear
_MULTILINEAR: dict[str, tuple[int, ...]] = {
    "mul.Tensor": (0, 1), "mul.Scalar": (0, 1), "mm.default": (0, 1), "bmm.default": (0, 1), "mv.default": (0, 1),
    "dot.default": (0, 1), "matmul.default": (0, 1), "outer.default": (0, 1), "kron.default": (0, 1),
    "einsum.default": (1,), **dict.fromkeys(_CONVOLUTIONS, (0, 1)), "linear.default": (0, 1),
    "bilinear.default": (0, 1, 2), "addmm.default": (1, 2), "baddbmm.default": (1, 2), "addmv.default": (1, 2),
}  # fmt: skip
# op -> position of the operand that is added to its product
_ADDED: dict[str, int] = {
    **dict.fromkeys(_CONVOLUTIONS, 2),
    "linear.default": 2,
    "bilinear.default": 3,
    "addmm.default": 0,
    "baddbmm.default": 0,
    "addmv.default": 0,
}


def is_complex(value: object) -> bool:
    """Whether this argument makes a call one on complex numbers."""
    if isinstance(value, tuple | list):
        return any(is_complex(v) for v in value)
    return isinstance(value, Complex | complex)


def takes_complex(name: str) -> bool:
    """Whether the op has a handler on complex tensors, if it has one on real ones."""
    short = name.removeprefix("aten.")
    return name in on_complex.rows or short in _LINEAR or short in _LINEAR_IN_FIRST or short in _MULTILINEAR


def complex_handler(name: str, rows: Mapping[str, Handler]) -> Handler:
    """The handler of an op on complex tensors. rows: the handlers on real ones. Raises Unsupported if there is none."""
    own_handler, short = on_complex.rows.get(name), name.removeprefix("aten.")
    if own_handler is not None:
        return own_handler
    if (short in _LINEAR or short in _LINEAR_IN_FIRST) and name in rows:
        return _linear(rows[name], _LINEAR.get(short, (0,)))
    if short in _MULTILINEAR and name in rows:
        return _multilinear(rows[name], _MULTILINEAR[short], _ADDED.get(short))
    raise Unsupported("on complex numbers")


def _part(value: object, imaginary: bool) -> object:
    """One part of an operand; 0 for the imaginary part of a real one."""
    if isinstance(value, tuple | list):
        return tuple(_part(v, imaginary) for v in value)
    if isinstance(value, Complex):
        return value.imaginary if imaginary else value.real
    if isinstance(value, Node):
        return filled(value.shape, 0, value.dtype) if imaginary else value
    if isinstance(value, complex):
        return value.imag if imaginary else value.real
    return 0 if imaginary and isinstance(value, int | float | Dim | Number) else value


def _is_real(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_real(v) for v in value)
    return not isinstance(value, complex) and not (isinstance(value, Complex) and value.imag is not None)


def _with(args: Sequence[object], places: Sequence[int], parts: Sequence[object]) -> list[object]:
    replacements = dict(zip(places, parts, strict=True))
    return [replacements.get(i, a) for i, a in enumerate(args)]


def _checked(args: Sequence[object], places: Sequence[int | None], named: Mapping[str, object]) -> list[int]:
    if any(is_complex(a) for i, a in enumerate(args) if i not in places) or any(map(is_complex, named.values())):
        raise Unsupported("a complex number as this argument")
    return [i for i in places if i is not None and i < len(args)]


def _linear(handler: Handler, places: tuple[int, ...]) -> Handler:
    def on_complex(c: Context, *args: object, **named: object) -> object:
        positions = _checked(args, places, named)
        real = handler(c, *_with(args, positions, [_part(args[i], False) for i in positions]), **named)
        if all(_is_real(args[i]) for i in positions):
            return _paired(real, None)
        return _paired(real, handler(c, *_with(args, positions, [_part(args[i], True) for i in positions]), **named))

    return on_complex


def _paired(real: object, imag: object) -> object:
    if isinstance(real, tuple):
        parts = (None,) * len(real) if imag is None else imag
        assert isinstance(parts, tuple)
        return tuple(_paired(r, i) for r, i in zip(real, parts, strict=True))
    assert isinstance(real, Node) and (imag is None or isinstance(imag, Node))
    return Complex(real, imag)


def _multilinear(handler: Handler, places: tuple[int, ...], added: int | None) -> Handler:
    """(a + bi)(c + di) = ac + (ad + bc) i - bd: a term per choice of parts, times i for each imaginary one. The operand
    `added` to the product is added to the first term of each part."""

    def terms(c: Context, *args: object, **named: object) -> object:
        base = None if added is None or added >= len(args) else args[added]
        positions = [i for i in _checked(args, (*places, added), named) if i != added]
        operands = [args[i] for i in positions]
        # einsum takes its operands as a list
        flat = [v for s in operands for v in (s if isinstance(s, tuple | list) else (s,))]
        sums: list[Node | None] = [None, None]
        free = [not _is_real(v) for v in flat]
        free[0] |= not _is_real(base)
        for choice in itertools.product(*((False, True) if f else (False,) for f in free)):
            parts = iter([_part(v, imaginary) for v, imaginary in zip(flat, choice, strict=True)])
            parts_chosen = [
                tuple(next(parts) for _ in s) if isinstance(s, tuple | list) else next(parts) for s in operands
            ]
            odd, negative = sum(choice) % 2, sum(choice) % 4 > 1
            arguments = _with(args, positions, parts_chosen)
            if base is not None:
                part = _part(base, bool(odd))
                assert isinstance(part, Node) and added is not None
                arguments[added] = part if sums[odd] is None else filled(part.shape, 0, part.dtype)
            term = handler(c, *arguments, **named)
            assert isinstance(term, Node)
            sums[odd] = _added(sums[odd], term, negative)
        real, imag = sums
        assert real is not None
        return Complex(real, imag)

    return terms


def _added(total: Node | None, term: Node, negative: bool) -> Node:
    if total is None:
        return ops.Neg()(term) if negative else term
    return ops.Sub()(total, term) if negative else ops.Add()(total, term)


# --- between real and complex


@aten("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(c: Context, x: Node) -> Complex:
    return complex_of(x)


def complex_of(x: Node) -> Complex:
    """[..., 2] as a complex tensor."""
    return Complex(*(select_index(x, x.type.rank - 1, i) for i in (0, 1)))


@aten("view.dtype", "view_copy.dtype")
@on_complex("view.dtype", "view_copy.dtype")
def view_dtype(c: Context, x: Node | Complex, dtype: torch.dtype) -> Node | Complex:
    """The same bytes as another dtype; another width changes the size of the last axis."""
    x = real_of(x) if isinstance(x, Complex) else x
    shape = (*c.shape, 2) if dtype.is_complex else c.shape
    if c.dtype.bits > x.dtype.bits:
        x = reshape(x, (*shape, c.dtype.bits // x.dtype.bits))
    y = reshape(ops.bitcast(x, c.dtype), shape)
    return complex_of(y) if dtype.is_complex else y


@aten("complex.default")
def complex_(c: Context, real: Node, imag: Node) -> Complex:
    return Complex(*aligned((real, imag)))


@aten("polar.default")
def polar(c: Context, radius: Node, angle: Node) -> Complex:
    radius, angle = aligned((radius, angle))
    return Complex(ops.Mul()(radius, ops.Cos()(angle)), ops.Mul()(radius, ops.Sin()(angle)))


@on_complex("view_as_real.default", "view_as_real_copy.default")
def view_as_real(c: Context, z: Complex) -> Node:
    return real_of(z)


def real_of(z: Complex) -> Node:
    """A complex tensor as [..., 2]."""
    return ops.stack([z.real, z.imaginary], -1)


@on_complex("real.default")
def real(c: Context, z: Complex) -> Node:
    return z.real


@on_complex("imag.default")
def imag(c: Context, z: Complex) -> Node:
    return z.imaginary


@on_complex("_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default", "_conj_copy.default")
def conj(c: Context, z: Complex | complex) -> Complex:
    z = pair(z, c)  # autograd calls it on numbers, too
    return z if z.imag is None else Complex(z.real, ops.Neg()(z.imag))


@on_complex("abs.default")
def abs_(c: Context, z: Complex) -> Node:
    return ops.Abs()(z.real) if z.imag is None else functions.modulus(functions.Complex(z.real, z.imag))


@on_complex("angle.default")
def angle(c: Context, z: Complex) -> Node:
    return ops.Atan2()(z.imaginary, z.real)


# --- functions of complex numbers


def pair(value: object, c: Context) -> Complex:
    """An operand of a complex op as a complex tensor, in the dtype of its result's parts."""
    if isinstance(value, Complex):
        return Complex(*(cast(p, c.dtype) for p in value.parts))
    if isinstance(value, Node | int | float):
        return Complex(node_of(value, c.dtype))
    if not isinstance(value, complex):
        raise Unsupported("a number that is known only at run time beside a complex tensor")
    return Complex(node_of(value.real, c.dtype), node_of(value.imag, c.dtype))


@on_complex("reciprocal.default")
def reciprocal(c: Context, z: Complex) -> Complex:
    """conj(z) / |z|^2, dividing by the larger part first (Smith, 1962), so that no square overflows; inf for 0."""
    one = filled(z.real.shape, 1, z.real.dtype)
    if z.imag is None:
        return Complex(ops.Div()(one, z.real))
    is_imag_larger = compare("LT", ops.Abs()(z.real), ops.Abs()(z.imag))
    large, small = select(is_imag_larger, z.imag, z.real), select(is_imag_larger, z.real, z.imag)
    ratio = select(compare("EQ", large, scalar_like(0, large)), small, ops.Div()(small, large))
    plain = ops.Div()(one, ops.Add()(large, ops.Mul()(small, ratio)))
    scaled = ops.Mul()(ratio, plain)
    return Complex(select(is_imag_larger, scaled, plain), ops.Neg()(select(is_imag_larger, plain, scaled)))


@on_complex("div.Tensor", "div.Scalar")
def div(c: Context, a: object, b: object) -> Complex:
    x, y = pair(a, c), pair(b, c)
    return _times(x, reciprocal(c, y)) if y.imag is not None else Complex(*(_quotient(p, y.real) for p in x.parts))


def _quotient(a: Node, b: Node) -> Node:
    return ops.Div()(*aligned((a, b)))


def _times(x: Complex, y: Complex) -> Complex:
    def part(choices: Sequence[tuple[Node | None, Node | None, bool]]) -> Node | None:
        total: Node | None = None
        for a, b, negative in choices:
            if a is not None and b is not None:
                total = _added(total, ops.Mul()(*aligned((a, b))), negative)
        return total

    real = part([(x.real, y.real, False), (x.imag, y.imag, True)])
    assert real is not None
    return Complex(real, part([(x.real, y.imag, False), (x.imag, y.real, False)]))


@on_complex("square.default")
def square(c: Context, z: Complex) -> Complex:
    return _times(z, z)


def power_of(c: Context, z: Complex, exponent: int) -> Complex:
    n = abs(exponent)
    power = Complex(filled(z.real.shape, 1, z.real.dtype)) if n == 0 else z
    for _ in range(n - 1):
        power = _times(power, z)
    return reciprocal(c, power) if exponent < 0 else power


@on_complex("exp.default")
def exp(c: Context, z: Complex) -> Complex:
    if z.imag is None:
        return Complex(ops.Exp()(z.real))
    value = functions.exp(functions.Complex(z.real, z.imag))
    return Complex(value.real, value.imag)


@on_complex("log.default")
def log(c: Context, z: Complex) -> Complex:
    return Complex(ops.Log()(abs_(c, z)), angle(c, z))


@on_complex("full.default", "full_like.default", "new_full.default", "scalar_tensor.default", "fill.Scalar")
def full(c: Context, *args: object, fill_value: object = None, **named: object) -> Complex:
    value = args[-1] if fill_value is None else fill_value
    if not isinstance(value, int | float | complex):
        raise Unsupported("a complex tensor filled with a number that is known only at run time")
    return Complex(*(filled(c.shape, v, c.dtype) for v in (value.real, value.imag)))


@on_complex("ones_like.default", "new_ones.default")
def ones_like(c: Context, z: Complex, *size: object, **named: object) -> Complex:
    return Complex(filled(c.shape, 1, c.dtype))
