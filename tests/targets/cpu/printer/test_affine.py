"""Divisions of sums by constants: what is printed gives Python's quotient and rest, in as few divisions as it can."""

from __future__ import annotations

import random

from ingot.support.native import Features
from ingot.targets.cpu.printer.affine import Affine, Term, constant
from ingot.targets.cpu.printer.builder import Builder

_OPS = {
    "mul": lambda x, y: x * y,
    "add": lambda x, y: x + y,
    "udiv": lambda x, y: x // y,
    "srem": lambda x, y: x % y,  # of natural numbers
}


def _builder() -> Builder:
    return Builder(Features("x86_64", ()), set())


def _valued(b: Builder, x: Affine, values: dict[str, int]) -> int:
    """What a sum is after the lines that were printed."""
    environment = dict(values)
    for line in b.scope.lines:
        name, _, op, _, left, right = line.replace(",", "").split()
        environment[name] = _OPS[op](*(environment[v] if v in environment else int(v) for v in (left, right)))
    return x.constant + sum(t.coefficient * environment[t.value] for t in x.terms)


def test_quotients_and_rests_are_those_of_the_sum() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        by = draw.choice([1, 2, 3, 7, 14, 16, 49, 56, 196, 224])
        terms, values = [], {}
        for name in ("%i", "%j", "%k")[: draw.randint(0, 3)]:
            multiple = draw.choice([1, 1, 7, 14, 16, 56])
            terms.append(Term(draw.choice([1, 2, 7, 8, 14, 56, 392]), name, multiple, True))
            values[name] = multiple * draw.choice([0, 1, 5, draw.randint(0, 10**9)])
        x = Affine(draw.choice([0, 1, 3, 13, 14, 100, draw.randint(0, 10**6)]), tuple(terms))
        total = x.constant + sum(t.coefficient * values[t.value] for t in terms)
        b = _builder()
        quotient, rest = x.quotient(b, by), x.remainder(b, by)
        assert (_valued(b, quotient, values), _valued(b, rest, values)) == divmod(total, by), (x, by)
        assert quotient.is_nonnegative and rest.is_nonnegative
        for result in (quotient, rest):
            assert not result.multiple or _valued(b, result, values) % result.multiple == 0, (x, by)


def test_rows_of_a_tile_share_one_division() -> None:
    b = _builder()
    row = Affine.of("%row", 14, True)
    places = [row._add(constant(j), 1) for j in range(14)]
    columns = [place.remainder(b, 56) for place in places]
    lines = [place.quotient(b, 56) for place in places]
    assert b.scope.lines == ["%v1 = srem i64 %row, 56", "%v2 = udiv i64 %row, 56"]
    assert [c.constant for c in columns] == list(range(14)) and len(set(lines)) == 1


def test_numbers_that_may_be_negative_are_not_natural() -> None:
    natural = Affine.of("%n", 8, True)
    assert natural.is_nonnegative and not Affine.of("%n", 8).is_nonnegative
    assert not natural._add(constant(1), -1).is_nonnegative and not constant(0)._add(natural, -1).is_nonnegative
