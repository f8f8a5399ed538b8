"""Matrix products: numpy's matmul, and einsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, Shape, TensorType, WeightAxes, dtype_of, f32
from ingot.ops.build import broadcast_shapes
from ingot.ops.core.base import check_count, round_to
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError


def _check_numbers(op: Op, inputs: Sequence[TensorType]) -> None:
    one_dtype = all(x.dtype == inputs[0].dtype for x in inputs) and inputs[0].dtype.kind != "b"
    op.expect(one_dtype, f"expected numbers of one dtype, got {', '.join(map(str, inputs))}")


def _data(*shapes: tuple[int, ...], dtype: type = np.float32) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(len(shapes))
    scale = 1 if np.issubdtype(dtype, np.integer) else 16
    return tuple((rng.integers(-32, 33, shape) / scale).astype(dtype) for shape in shapes)


@dataclass(frozen=True)
class MatMul(Op):
    """numpy.matmul: [..., M, K] x [..., K, N] -> [..., M, N]; leading dimensions broadcast, vectors are promoted.

    The operands have one dtype. dtype: the dtype of the result, by default that of the operands (f32 for products of
    bf16 to which a bias is added before rounding).
    """

    name: ClassVar[str] = "matmul"
    dtype: DType | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        a, b = inputs
        _check_numbers(self, inputs)
        self.expect(a.rank > 0 and b.rank > 0, f"expected operands of rank 1 or more, got {a} and {b}")
        depth_a, depth_b = a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0]
        self.expect(
            depth_a == depth_b,
            f"expected dimension {a.rank - 1} of {a} to equal dimension {max(b.rank - 2, 0)} of {b}, "
            f"got {depth_a} and {depth_b}",
            (depth_a, depth_b),
        )
        try:
            batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ShapeError as e:
            raise ShapeError(f"{self.name}: batch dimensions of {a} and {b}: {e}").between(e.sizes) from None
        rows, cols = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
        return TensorType(self.dtype or a.dtype, (*batch, *rows, *cols))

    def weight_axes(self, *inputs: TensorType) -> WeightAxes | None:
        x, w = inputs
        return WeightAxes(1, x.rank - 1, (x.rank - 1, 0), plain=True) if w.rank == 2 else None

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        a, b = (t.as_f64(x) for x in inputs)
        with np.errstate(all="ignore"):
            return round_to(np.asarray(np.matmul(a, b)), self.dtype or dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        a, b = Term(inputs[0]), Term(inputs[1])
        if b.rank <= 2 or (a.rank > 1 and all(d == 1 for d in b.shape[:-2]) and b.rank <= a.rank):
            # one matrix for all rows of a: not batched
            right = b if b.rank <= 2 else b.reshape(b.shape[-2:])
            return t.contract(a, right, [(a.rank - 1, max(right.rank - 2, 0))], dtype=self.dtype).node
        vector = a.rank == 1
        if vector:
            a = a.expand(0)
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        n = len(batch)
        a, b = a.broadcast((*batch, *a.shape[-2:])), b.broadcast((*batch, *b.shape[-2:]))
        out = t.contract(a, b, [(n + 1, n)], [(i, i) for i in range(n)], self.dtype)
        return out.reshape((*batch, out.shape[-1])).node if vector else out.node

    @classmethod
    def samples(cls) -> Samples:
        shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            ((3, 5), (5, 2)),
            ((5,), (5,)),
            ((3, 5), (5,)),
            ((5,), (5, 2)),
            ((2, 3, 5), (5, 4)),
            ((2, 3, 5), (1, 5, 4)),
            ((3, 5), (2, 5, 4)),
            ((5,), (2, 5, 4)),
            ((2, 3, 5), (5,)),
            ((2, 1, 3, 5), (4, 5, 2)),
            ((1, 3, 5), (2, 1, 5, 4)),
            ((3, 5), (1, 1, 5, 4)),
            ((0, 5), (5, 2)),
            ((3, 0), (0, 2)),
        ]
        for a, b in shapes:
            yield cls(), _data(a, b)
        for dtype in (np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64):
            yield cls(), _data((2, 3, 5), (2, 5, 4), dtype=dtype)
        yield cls(f32), _data((2, 3, 5), (5, 4), dtype=np.float16)
        yield cls(f32), _data((2, 3, 5), (2, 5, 4), dtype=ml_dtypes.bfloat16)


_ELLIPSIS = "."


@dataclass(frozen=True)
class Equation:
    """A parsed einsum equation: one string of labels for each operand, and one for the result.

    The dimensions of an ellipsis have labels from chr(0xE000) on, aligned at the right, as numpy broadcasts.
    """

    operands: tuple[str, ...]
    result: str

    @classmethod
    def parse(cls, text: str, ranks: Sequence[int]) -> Equation:
        """Parse `text`. Raise ShapeError if it is malformed or does not fit the ranks of the operands."""
        lhs, arrow, rhs = text.replace(" ", "").partition("->")
        terms = lhs.replace("...", _ELLIPSIS).split(",")
        if len(terms) != len(ranks):
            raise ShapeError(f"einsum {text!r}: expected {len(terms)} operands, got {len(ranks)}")
        widths = [rank - len(term.replace(_ELLIPSIS, "")) for term, rank in zip(terms, ranks, strict=True)]
        for i, (term, width) in enumerate(zip(terms, widths, strict=True)):
            letters = term.replace(_ELLIPSIS, "", 1)
            if width < 0 or (width > 0 and _ELLIPSIS not in term) or not (letters.isalpha() or not letters):
                expected = f"{len(letters)} or more" if _ELLIPSIS in term else len(letters)
                raise ShapeError(f"einsum {text!r}: operand {i}: expected rank {expected}, got {ranks[i]}")
        max_width = max((w for term, w in zip(terms, widths, strict=True) if _ELLIPSIS in term), default=0)
        ellipsis_labels = "".join(chr(0xE000 + i) for i in range(max_width))
        operands = tuple(
            term.replace(_ELLIPSIS, ellipsis_labels[max_width - width :] if width else "")
            for term, width in zip(terms, widths, strict=True)
        )
        if arrow:
            result = rhs.replace("...", _ELLIPSIS).replace(_ELLIPSIS, ellipsis_labels)
        else:
            all_labels = "".join(operands)
            single_labels = sorted(c for c in set(all_labels) if all_labels.count(c) == 1 and c not in ellipsis_labels)
            result = ellipsis_labels + "".join(single_labels)
        if len(set(result)) != len(result) or not set(result) <= set("".join(operands)) | set(ellipsis_labels):
            raise ShapeError(f"einsum {text!r}: expected distinct result labels that operands have, got {rhs!r}")
        return cls(operands, result)


@dataclass(frozen=True)
class Einsum(Op):
    """Einstein summation of any number of operands of one dtype (numpy.einsum, ONNX Einsum).

    Repeated labels of an operand select diagonals, ellipses and sizes of 1 broadcast. Without "->" the result has the
    ellipsis, then the labels that occur once, in alphabetical order.
    """

    name: ClassVar[str] = "einsum"
    equation: str

    def _sizes(self, equation: Equation, shapes: Sequence[Shape]) -> dict[str, DimLike]:
        sizes: dict[str, DimLike] = {}
        for i, (labels, shape) in enumerate(zip(equation.operands, shapes, strict=True)):
            for c, d in zip(labels, shape, strict=True):
                previous = sizes.setdefault(c, d)
                if previous == 1:
                    sizes[c] = d
                message = f"{self.equation!r}: operand {i}: label {c!r}: expected size {previous}, got {d}"
                self.expect(d == 1 or previous in (1, d), message, (previous, d))
        return sizes

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) > 0, "expected at least one operand, got none")
        _check_numbers(self, inputs)
        equation = Equation.parse(self.equation, [x.rank for x in inputs])
        sizes = self._sizes(equation, [x.shape for x in inputs])
        return inputs[0].with_shape(tuple(sizes[c] for c in equation.result))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        equation = Equation.parse(self.equation, [x.ndim for x in inputs])
        sizes = self._sizes(equation, [x.shape for x in inputs])
        order = {c: i for i, c in enumerate(sizes)}
        parts: list[object] = []
        for labels, x in zip(equation.operands, inputs, strict=True):
            x = np.broadcast_to(t.as_f64(x), tuple(int(sizes[c]) for c in labels))
            parts += [x, [order[c] for c in labels]]
        out = np.einsum(*parts, [order[c] for c in equation.result])  # type: ignore[call-overload]
        return round_to(np.asarray(out), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        equation = Equation.parse(self.equation, [len(x.shape) for x in inputs])
        sizes = self._sizes(equation, [x.shape for x in inputs])
        result = equation.result
        product, labels = _normalize_operand(Term(inputs[0]), equation.operands[0], sizes)
        for i in range(1, len(inputs)):
            operand, others = _normalize_operand(Term(inputs[i]), equation.operands[i], sizes)
            needed_labels = set(result) | set("".join(equation.operands[i + 1 :]))
            product, labels = _product(product, labels, operand, others, needed_labels)
        product, labels = _sum_out(product, labels, set(result))
        # labels of size 1 in all operands were dropped
        missing = [c for c in result if c not in labels]
        order = [c for c in result if c in labels]
        out = product.transpose([labels.index(c) for c in order])
        return out.expand(*(result.index(c) for c in missing)).node if missing else out.node

    @classmethod
    def samples(cls) -> Samples:
        cases: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
            ("ij,jk->ik", ((3, 4), (4, 5))),
            ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
            ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
            ("ij,jk", ((3, 4), (4, 5))),
            ("ba,ca", ((3, 4), (5, 4))),
            ("ii->i", ((4, 4),)),
            ("ii", ((4, 4),)),
            ("iij->j", ((3, 3, 2),)),
            ("i,j->ij", ((3,), (4,))),
            ("i,i->i", ((3,), (3,))),
            ("ij,ij->", ((3, 4), (3, 4))),
            ("ij->ji", ((3, 4),)),
            ("ijk->ik", ((3, 4, 2),)),
            ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 2))),
            ("...ij,jk", ((2, 3, 4), (4, 5))),
            ("i...->...", ((3, 4, 2),)),
            ("...a->a...", ((2, 3, 4),)),
            ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
            ("bn,anm,bm->ba", ((2, 3), (5, 3, 4), (2, 4))),
            ("ij,kj->ik", ((3, 1), (2, 4))),
            ("ij,ij->ij", ((1, 4), (3, 1))),
            ("ij,ik->jk", ((1, 2), (1, 3))),
            ("a,b,a->", ((3,), (2,), (3,))),
            ("ab,b", ((1, 2), (2,))),
            (" a b , b c -> c a ", ((3, 4), (4, 5))),
            ("ij,jk->ik", ((3, 0), (0, 5))),
        ]
        for equation, shapes in cases:
            yield cls(equation), _data(*shapes)
        yield cls("ij,jk->ik"), _data((3, 4), (4, 5), dtype=np.int64)
        yield cls("ij,jk->ik"), _data((3, 4), (4, 5), dtype=np.float16)


def _normalize_operand(x: Term, labels: str, sizes: dict[str, DimLike]) -> tuple[Term, str]:
    """`x` without dimensions of size 1, and with each label once."""
    unit_axes = [i for i, c in enumerate(labels) if x.shape[i] == 1]
    if unit_axes:
        x = x.reshape(tuple(d for i, d in enumerate(x.shape) if i not in unit_axes))
        labels = "".join(c for i, c in enumerate(labels) if i not in unit_axes)
    for c in sorted(set(labels)):
        while labels.count(c) > 1:
            x, labels = _diagonal(x, labels, labels.index(c), labels.rindex(c))
    return x, labels


def _diagonal(x: Term, labels: str, i: int, j: int) -> tuple[Term, str]:
    """The diagonal of axes i and j, as axis i: elements off the diagonal are zeroed, and axis j is summed."""
    axis_sizes = (x.shape[i], x.shape[j])
    is_diagonal = t.iota(axis_sizes, 0).equals(t.iota(axis_sizes, 1)).spread(x.shape, (i, j))
    masked = t.where(is_diagonal, x, 0)
    assert isinstance(masked, Term)
    return masked.sum((j,), keepdims=False), labels[:j] + labels[j + 1 :]


def _sum_out(x: Term, labels: str, kept_labels: set[str]) -> tuple[Term, str]:
    summed = tuple(i for i, c in enumerate(labels) if c not in kept_labels)
    return x.sum(summed, keepdims=False), "".join(c for c in labels if c in kept_labels)


def _product(a: Term, la: str, b: Term, lb: str, kept_labels: set[str]) -> tuple[Term, str]:
    """The product of two terms, summed over shared labels that are not in `needed`."""
    a, la = _sum_out(a, la, kept_labels | set(lb))
    b, lb = _sum_out(b, lb, kept_labels | set(la))
    shared = [c for c in la if c in lb]
    contracting = [c for c in shared if c not in kept_labels]
    batch = [c for c in shared if c in kept_labels]
    free_a, free_b = ([c for c in labels if c not in shared] for labels in (la, lb))
    labels = "".join((*batch, *free_a, *free_b))
    if not contracting:
        # no summation: a broadcast elementwise product
        shape = tuple(a.shape[la.index(c)] if c in la else b.shape[lb.index(c)] for c in labels)
        expanded_a = a.spread(shape, [labels.index(c) for c in la])
        return expanded_a * b.spread(shape, [labels.index(c) for c in lb]), labels
    pairs = [(la.index(c), lb.index(c)) for c in contracting]
    return t.contract(a, b, pairs, [(la.index(c), lb.index(c)) for c in batch]), labels
