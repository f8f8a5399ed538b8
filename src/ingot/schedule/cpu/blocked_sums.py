"""Blocked summation: long sums in parts, so that rounding errors do not grow with their length.

    acc = 0                          total = 0
    for i in range(n):      ->       for p in range(0, n, part):
        acc += x[i]                      acc = 0
                                         for i in range(p, min(p + part, n)):
                                             acc += x[i]
                                         total += acc
                                     acc = total

One sum of n terms errs by up to n u sum |x|, u half a unit in the last place; parts of m terms by (m + n / m) u sum |x|
(blocked summation: Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.schedule.block import Block
from ingot.schedule.index import add, dim_expr, integer
from ingot.support.dataclass import dataclass

MAX_TERMS = 1024  # terms of a part; with 512, bert-base and gpt2 run at 0.98x on two threads
MAX_TERMS_FROM_MEMORY = 256  # if the terms are loaded from memory and registers are free


@dataclass(frozen=True)
class LongSums:
    """Sums over the same loops, in registers that hold zeros.

    sums, totals: accumulators of a part and of all parts. level: the loop, counted from the outermost, that is cut into
    parts of `part_terms` iterations (None: the sums are short or exact).
    """

    sums: tuple[Buffer, ...] = ()
    totals: tuple[Buffer, ...] = ()
    level: int | None = None
    part_terms: int = 0

    @staticmethod
    def of(
        block: Block,
        sums: Sequence[Buffer],
        extents: Sequence[DimLike],
        step: int = 1,
        separate: int = 1,
        max_terms: int = MAX_TERMS,
    ) -> LongSums:
        """Sums in parts of `max_terms` terms, or of more if there would be more than `max_terms` parts. step: of the
        innermost loop. separate: the number of consecutive elements of that loop that are added to separate sums."""
        float_sums = tuple(s for s in sums if s.dtype.is_float)
        terms = product(extents)
        if not float_sums or (isinstance(terms, int) and terms <= max_terms * separate):
            return SHORT
        max_terms = max(max_terms, isqrt(estimate(terms) // separate))
        inner_terms = [-(-estimate(product(extents[i + 1 :])) // separate) for i in range(len(extents) - 1)] + [0]
        level = next(i for i, terms in enumerate(inner_terms) if terms <= max_terms)
        part, extent = max_terms // inner_terms[level] if inner_terms[level] else max_terms * separate, extents[level]
        if isinstance(extent, int):
            part = -(-extent // -(-extent // part))  # equal ones
        if not inner_terms[level]:
            part = -(-part // step) * step
        totals = tuple(block.alloc("total", s.dtype, s.size or 1, lanes=s.lanes) for s in float_sums)
        result = LongSums(float_sums, totals, level, part)
        result._for_each(block, lambda b, i, part, total: b.store(total, i, k.lit(0.0, total.dtype, total.lanes)))
        return result

    def loop(
        self,
        block: Block,
        level: int,
        hint: str,
        begin: DimLike | Expr,
        end: DimLike | Expr,
        step: int,
        body: Callable[[Block, Expr], None],
    ) -> None:
        """Emit a loop like `block.loop`, cut into parts if it is the loop of `self.level`."""
        if level != self.level:
            block.loop(hint, begin, end, step, body)
            return
        lo = begin if isinstance(begin, Expr) else dim_expr(begin)
        hi = end if isinstance(end, Expr) else dim_expr(end)
        multiple = step if isinstance(lo, Lit) and int(lo.value) % step == 0 else None

        def move(b: Block, i: Expr, part: Buffer, total: Buffer) -> None:
            b.store(total, i, k.add(k.load(total, i), k.load(part, i)))
            b.store(part, i, k.lit(0.0, part.dtype, part.lanes))

        def part(b: Block, first: Expr) -> None:
            last = b.let(k.binary("min", add(first, integer(self.part_terms)), hi), "last")
            b.loop(hint, first, last, step, body, multiple=multiple)
            if level == 0:  # `finish` adds the last part
                b.when(k.binary("lt", last, hi), lambda c: self._for_each(c, move))
            else:
                self._for_each(b, move)

        block.loop("p", lo, hi, self.part_terms, part)

    def finish(self, block: Block) -> None:
        """Add the totals to the sums, which hold the last part and terms added after the loops."""
        self._for_each(block, lambda b, i, part, total: b.store(part, i, k.add(k.load(total, i), k.load(part, i))))

    def _for_each(self, block: Block, body: Callable[[Block, Expr, Buffer, Buffer], None]) -> None:
        for part, total in zip(self.sums, self.totals, strict=True):
            block.loop("i", 0, part.size or 1, 1, lambda b, i, o=part, t=total: body(b, i, o, t), unroll=True)


SHORT = LongSums()
