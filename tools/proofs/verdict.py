"""What a proof says, and the solver that says it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import z3

from ingot.ir.types import DType

State = Literal["proved", "refuted", "open"]
# of z3's own count of steps, so that a verdict does not depend on the machine: some 20 s
STEPS = 60_000_000


@dataclass(frozen=True)
class Verdict:
    """rule, case: what was asked, such as an identity and a dtype. how: the method, or why it is open. witness: a
    counterexample. seconds: of processor time."""

    rule: str
    case: str
    state: State
    how: str
    witness: str = ""
    seconds: float = 0

    def __str__(self) -> str:
        return f"{self.state:7} {self.rule} [{self.case}] {self.how} {self.witness}".rstrip()


def timed(prove: Callable[[], Verdict]) -> Verdict:
    start = time.process_time()
    verdict = prove()
    return replace(verdict, seconds=time.process_time() - start)


def solve(claims: Iterable[z3.BoolRef], logic: str, steps: int = STEPS) -> tuple[z3.CheckSatResult, z3.ModelRef | None]:
    """Whether all claims can hold at once, and an example of it."""
    solver = z3.SolverFor(logic) if logic else z3.Solver()
    solver.set("rlimit", steps)
    solver.add(*claims)
    found = solver.check()
    return found, solver.model() if found == z3.sat else None


def state_of(found: z3.CheckSatResult) -> State:
    """The state of a rule whose two sides `found` can differ."""
    return "proved" if found == z3.unsat else "refuted" if found == z3.sat else "open"


def by_values(rule: str, case: str, wrong: np.ndarray, left: np.ndarray, right: np.ndarray) -> Verdict:
    """The verdict of running all values: where the results of both sides are `wrong`."""
    if not wrong.any():
        return Verdict(rule, case, "proved", f"exhaustion, {wrong.size:,} values")
    at = int(np.argmax(wrong))
    return Verdict(rule, case, "refuted", "exhaustion", f"value {at}: {left.flat[at]!r} and {right.flat[at]!r}")


def value_in(model: z3.ModelRef, term: z3.ExprRef, dtype: DType) -> np.generic:
    """The value of a variable in a counterexample."""
    found = model.eval(term, model_completion=True)
    if dtype.kind == "b":
        return np.bool_(z3.is_true(found))
    if dtype.is_float:
        bits = z3.simplify(z3.fpToIEEEBV(found))
        # the bits of NaN are left open
        number = bits.as_long() if z3.is_bv_value(bits) else None
        if number is None:
            return dtype.numpy.type(np.nan)
        return np.array([number], f"u{dtype.nbytes}").view(dtype.numpy)[0]
    number = found.as_signed_long() if dtype.kind == "i" else found.as_long()
    return dtype.numpy.type(number)


def summary(verdicts: Sequence[Verdict]) -> str:
    counts = {state: sum(v.state == state for v in verdicts) for state in ("proved", "refuted", "open")}
    return ", ".join(f"{n} {state}" for state, n in counts.items())
