"""Whether a model computes each row of a batch by itself, bit for bit: only then may a server join requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ingot.debug.feeds import choose_sizes, random_feeds
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support.errors import IngotError, InputError
from ingot.support.log import Log

_CASES = 3  # of `choose_sizes`: choices of the other open sizes in the comparison
_SMALL_BATCH_ROWS = 4  # in all but the first case, so that a server starts quickly
_log = Log("ingot.serving")


def leading_symbol(program: Program) -> str | None:
    """The symbol that is the leading size of every input and output, and occurs nowhere else; None if there is none."""
    specs = (*program.inputs, *program.outputs)
    leads = {spec.shape[0] if spec.shape else None for spec in specs}
    if len(leads) != 1 or any(spec.elements for spec in program.inputs):
        return None
    (lead,) = leads
    if not isinstance(lead, tuple) or len(lead) != 1 or not isinstance(lead[0], str):
        return None
    others = [dim for spec in specs for dim in spec.shape[1:] if isinstance(dim, tuple)]
    return None if any(lead[0] in dim for dim in others) else lead[0]


def max_joint_rows(model: CompiledModel, batch: str | None, limit: int) -> int:
    """The rows that a server may join in one call of the model: up to `limit`; 0 if it must not join any.

    batch: the name of the open size to join along; None: the leading size that all inputs and outputs share, if rows
    prove to be independent; "": none. The proof is a comparison: batches of several sizes, with rows of random numbers,
    zeros, NaN and infinities side by side, must have the bits of calls with single rows.

    Raises InputError if `batch` is named and the model has no such size, or computes other bits in a batch.
    """
    if batch == "" or limit < 2:
        return 0
    reason = _refusal(model, batch)
    if reason is None:
        program = model.program
        symbol = leading_symbol(program)
        high = next(s.hi for s in program.symbols if s.name == symbol)
        limit = limit if high is None else min(limit, high)
        reason = None if symbol is None or limit < 2 else _difference(model, symbol, limit)
    if reason is None:
        return limit if limit > 1 else 0
    if batch is not None:
        raise InputError(f"batches along {batch!r}", got=reason, fix="serve the model without --batch")
    _log.info("requests are not joined: %s", reason)
    return 0


def _refusal(model: CompiledModel, batch: str | None) -> str | None:
    if not model.is_one_program:
        return "the model is several programs"
    symbol = leading_symbol(model.program)
    if symbol is None:
        return "no open size is the leading one of all inputs and outputs"
    if batch not in (None, symbol):
        return f"the leading size of all inputs and outputs is {symbol!r}"
    return "its state changes from call to call" if model.program.state else None


def _difference(model: CompiledModel, symbol: str, max_rows: int) -> str | None:
    """The difference between a row in a batch and the same row alone, as text; None if there is none."""
    program = model.program
    try:
        cases = [
            choose_sizes(program, case, {symbol: max_rows if case == 0 else min(max_rows, _SMALL_BATCH_ROWS)})
            for case in range(_CASES)
        ]
        for seed, sizes in enumerate(c for i, c in enumerate(cases) if c not in cases[:i]):
            rows, total = _rows(program, sizes, seed), sizes[symbol]
            single_results = [model.run([a[i : i + 1] for a in rows]) for i in range(total)]
            for count in sorted(n for n in {2, 3, total // 2, total} if 2 <= n <= total):
                batch_results = model.run([a[:count] for a in rows])
                for i in range(count):
                    if not all(
                        _is_same(j[i : i + 1], a) for j, a in zip(batch_results, single_results[i], strict=True)
                    ):
                        return f"row {i} of {count} has other bits than by itself, at {dict(sizes)}"
    except IngotError as error:
        return str(error)
    return None


def _rows(program: Program, sizes: Mapping[str, int], seed: int) -> list[np.ndarray]:
    """Rows of random numbers. Of every four rows, in floats one is NaN and one infinite, and one is zero."""
    feeds = random_feeds(program, sizes, seed=seed)
    arrays: list[np.ndarray] = []
    for spec in program.inputs:
        array = feeds[spec.name]
        if spec.dtype in ("f64", "f32", "f16", "bf16"):
            array[1::4] = np.nan
            array[2::4] = np.inf
        array[3::4] = 0
        arrays.append(array)
    return arrays


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the bits are equal; all NaNs count as equal."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nans: Sequence[np.ndarray] = [x != x for x in (a, b)]
    if not np.array_equal(*nans):
        return False
    rest = ~np.asarray(nans[0])
    return np.ascontiguousarray(a[rest]).tobytes() == np.ascontiguousarray(b[rest]).tobytes()
