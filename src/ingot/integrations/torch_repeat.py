"""A call of a graph with tensors like those of the call before, of which only the addresses differ.

The checks of a call, the permutations of its inputs and its bookkeeping take some microseconds for each tensor, and a
network of 50 layers trains 160 and writes 160 more. Where all tensors have the types, sizes and strides of the last
call's, the program needs their addresses alone: one loop in C reads these, one compares the tensors (torch's guard).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ingot.runtime.executable import Repeated
from ingot.runtime.tensors import tensor_guard
from ingot.support.dataclass import dataclass

ALIGN_BYTES = 16  # bytes of the addresses of what is written in place
_data_ptr: Any = torch.Tensor.data_ptr
_forward_mode: Any = forward_ad
_Pick = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class RepeatedCall:
    """guard: whether tensors are like the last call's. inputs, state: those of a call's values that the program reads,
    and that it writes in place. results: of the call's values and those that the program allocates, its results."""

    run: Repeated
    guard: Callable[..., bool]
    inputs: _Pick
    state: _Pick | None
    results: _Pick

    @classmethod
    def of(
        cls,
        run: Repeated | None,
        args: Sequence[Any],
        results: Sequence[Any],
        inputs: Sequence[int],
        in_place: Mapping[int, int],
    ) -> RepeatedCall | None:
        """The call like one that was just made; None if more than addresses must be known.

        args, results: of that call. inputs: the positions of the arguments that the program reads. in_place: of those
        that it writes, with the numbers of the results that they are."""
        if run is None or not all(isinstance(v, torch.Tensor) and not v.is_complex() for v in (*args, *results)):
            return None  # some are converted
        guard = tensor_guard(args) if all(args[i].is_contiguous() for i in in_place) else None
        if guard is None:
            return None
        written = {number: i for i, number in in_place.items()}
        allocated = itertools.count(len(args))
        places = [written[n] if n in written else next(allocated) for n in range(len(results))]
        return cls(run, guard, _pick(inputs), _pick([*in_place]) if in_place else None, _pick(places))

    def __call__(self, args: Sequence[Any]) -> Sequence[Any] | None:
        """The program's results; None if the tensors may be unlike the last call's."""
        if _forward_mode._current_level >= 0:
            return None
        try:
            pointers = [*map(_data_ptr, args)]
        except (TypeError, RuntimeError, ValueError):
            return None  # a value is not a tensor, or has no memory
        if 0 in pointers or not self.guard(*args):
            return None
        if self.state is None:
            return self.run([*self.inputs(pointers)], None)
        state = self.state(pointers)
        if reduce(operator.or_, state) % ALIGN_BYTES:
            return None
        allocated = self.run([*self.inputs(pointers)], state)
        # torch, and programs with constant parameters, detect changes by versions; inference tensors have none
        increment_version(self.state(args))
        return self.results([*args, *allocated])


def _pick(positions: Sequence[int]) -> _Pick:
    """A function of a sequence to the values at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: [values[i] for i in positions]


__all__ = ["ALIGN_BYTES", "RepeatedCall"]
