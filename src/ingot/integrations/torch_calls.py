"""Calls of a graph's program: over the caller's tensors as state, seeded, and repeated.

A repeated call has tensors like those of the call before, of which only the addresses differ.

The checks of a call, the permutations of its inputs and its bookkeeping take some microseconds for each tensor, and a
network of 50 layers trains 160 and writes 160 more. Where all tensors have the types, sizes and strides of the last
call's, the program needs their addresses alone: one loop in C reads these, one compares the tensors (torch's guard).
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ingot.frontends.torch.model import ImportedModel
from ingot.runtime.executable import Repeated
from ingot.runtime.executor import CompiledModel
from ingot.runtime.state import RANDOM
from ingot.runtime.tensors import current_stream, tensor_guard
from ingot.support.dataclass import dataclass

_ALIGN_BYTES = 16  # bytes of the addresses of what is written in place
_data_ptr: Any = torch.Tensor.data_ptr
_forward_mode: Any = forward_ad
_IS_NESTED = operator.attrgetter("is_nested")
_Pick = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class CallOverState:
    """A call of a program with the caller's tensors as state: (other inputs, these tensors by the index of their new
    value among all results) -> all results."""

    model: ImportedModel
    run: CompiledModel

    def __call__(self, others: Sequence[Any], state_tensors: Mapping[int, torch.Tensor]) -> tuple[Any, ...]:
        tensors = targets = [*state_tensors.values()]
        if not _fit(tensors):
            form = torch.contiguous_format
            targets = [t if _fit([t]) else t.clone(memory_format=form) for t in tensors]
        results = [*self.model.caller(lambda inputs: self.run.run_over(inputs, targets))(*others)]
        for target, tensor in zip(targets, tensors, strict=True) if targets is not tensors else ():
            if target is not tensor:
                tensor.copy_(target)
        # torch, and programs with constant parameters, detect changes by versions; inference tensors have none
        increment_version(tensors)
        for number in sorted(state_tensors):
            results.insert(number, state_tensors[number])
        return tuple(results)

    def explain(self, *others: Any) -> str:
        return self.run.explain(*others)

    def repeated(self, others: Sequence[Any]) -> Repeated | None:
        return self.run.repeated(others)


def _fit(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a program may write all of these in place. C code checks them: a decoder has three for each layer."""
    addresses = reduce(operator.or_, map(torch.Tensor.data_ptr, tensors), 0)
    return addresses % _ALIGN_BYTES == 0 and all(map(torch.Tensor.is_contiguous, tensors))


@dataclass(frozen=True)
class SeededCall:
    """A call of a program with random numbers, seeded from torch's generator, so that torch.manual_seed takes effect.
    In a CUDA graph that is captured, the generator of the GPU draws the seed, another one in each replay."""

    run: Any
    gpu: torch.device | None

    def __call__(self, *args: Any) -> Any:
        self.seed()
        return self.run(*args)

    def seed(self) -> None:
        if self.gpu is not None and torch.cuda.is_current_stream_capturing():
            seed = torch.randint((1 << 63) - 1, (1,), device=self.gpu)
            self.run.set_state({RANDOM: torch.nn.functional.pad(seed, (0, 1))})  # as `seed_state` has it
        else:
            self.run.seed(int(torch.randint((1 << 63) - 1, (), device="cpu")))  # whatever the default device is

    def explain(self, *args: Any) -> str:
        return self.run.explain(*args)

    def repeated(self, inputs: Sequence[Any]) -> Repeated | None:
        run = self.run.repeated(inputs)
        if run is None:
            return None

        def seeded(pointers: list[int], state: Sequence[int] | None, given: Sequence[Any]) -> list[Any]:
            self.seed()
            return run(pointers, state, given)

        return seeded


@dataclass(frozen=True)
class RepeatedCall:
    """tensors: of a call's arguments, without numbers that Python code counts; None if all are. guard: whether these
    are like the last call's. inputs, state: those that the program reads, and that it writes in place. results: of the
    tensors and those that the program returns, its results. scratch: tensors for what it returns that is read before
    the next call alone."""

    run: Repeated
    tensors: _Pick | None
    guard: Callable[..., bool]
    inputs: _Pick
    state: _Pick | None
    results: _Pick
    scratch: _Scratch

    @classmethod
    def of(
        cls,
        run: Repeated | None,
        args: Sequence[Any],
        results: Sequence[Any],
        inputs: Sequence[int],
        in_place: Mapping[int, int],
        copied: Collection[int],
    ) -> RepeatedCall | None:
        """The call like one that was just made; None if more than addresses must be known.

        args, results: of that call. inputs: the positions of the arguments that the program reads. in_place: of those
        that it writes, with the numbers of the results that they are. copied: the numbers of results that the caller
        copies at once."""
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        place = {i: n for n, i in enumerate(tensors)}
        if run is None or any(i not in place for i in (*inputs, *in_place)):
            return None
        pick, args = (None, args) if len(tensors) == len(args) else (_pick(tensors), [args[i] for i in tensors])
        inputs, in_place = [place[i] for i in inputs], {place[i]: number for i, number in in_place.items()}
        if not all(isinstance(v, torch.Tensor) and not v.is_complex() for v in (*args, *results)):
            return None  # some are converted
        guard = tensor_guard(args) if all(args[i].is_contiguous() for i in in_place) else None
        if guard is None:
            return None
        written = {number: i for i, number in in_place.items()}
        allocated = itertools.count(len(args))
        places = [written[n] if n in written else next(allocated) for n in range(len(results))]
        state = _pick([*in_place]) if in_place else None
        scratch = _Scratch([r if n in copied else None for n, r in enumerate(results) if n not in written])
        return cls(run, pick, guard, _pick(inputs), state, _pick(places), scratch)

    def __call__(self, args: Sequence[Any]) -> Sequence[Any] | None:
        """The program's results; None if the tensors may be unlike the last call's."""
        if self.tensors is not None:
            args = self.tensors(args)
        if _forward_mode._current_level >= 0:
            return None
        try:
            pointers = [*map(_data_ptr, args)]
        except (TypeError, RuntimeError, ValueError):
            return None  # a value is not a tensor, or has no memory
        # the guard aborts the process for nested tensors
        if 0 in pointers or any(map(_IS_NESTED, args)) or not self.guard(*args):
            return None
        if self.state is None:
            return self.run([*self.inputs(pointers)], None, self.scratch())
        state = self.state(pointers)
        if reduce(operator.or_, state) % _ALIGN_BYTES:
            return None
        allocated = self.run([*self.inputs(pointers)], state, self.scratch())
        # torch, and programs with constant parameters, detect changes by versions; inference tensors have none
        increment_version(self.state(args))
        return self.results([*args, *allocated])


class _Scratch:
    """Memory for results that are copied before the next call on the same stream from the same thread."""

    def __init__(self, examples: Sequence[torch.Tensor | None]) -> None:
        """examples: tensors like those that are wanted; None for results that are no scratch."""
        self._examples = examples if any(e is not None for e in examples) else ()
        self._is_on_gpu = any(e is not None and e.is_cuda for e in examples)
        self._kept = threading.local()  # by_stream

    def __call__(self) -> Sequence[Any]:
        if self._is_on_gpu and torch.cuda.is_current_stream_capturing():
            return ()  # the graph may run at any time
        if not self._examples:
            return ()
        by_stream: dict[int, list[Any]] = self._kept.__dict__.setdefault("by_stream", {})
        stream = current_stream() if self._is_on_gpu else 0
        if stream not in by_stream:
            by_stream[stream] = [None if e is None else torch.empty_like(e) for e in self._examples]
        return by_stream[stream]


def _pick(positions: Sequence[int]) -> _Pick:
    """A function of a sequence to the values at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: [values[i] for i in positions]


__all__ = ["CallOverState", "RepeatedCall", "SeededCall"]
