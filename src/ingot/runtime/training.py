"""A program that makes a step of training at each call: what a saved one needs, with numpy alone."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ingot.runtime import artifact, describe
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.tensors import callers_stream, is_tensor
from ingot.support import safetensors
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, InputError

META = "training"  # the program's meta entry that says that it trains
SECTIONS = "sections"  # that which has a letter for each of its steps


@dataclass(frozen=True)
class Training:
    """What a program's tensors are. lr: of a call that gives none. parameters, buffers: names of the state that are the
    model's own. metrics: names of the results behind the loss. rate: the name of the learning rate among the inputs.
    classes: of which the last of the batch's inputs has the numbers; None where it is something else."""

    lr: float
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    metrics: tuple[str, ...]
    rate: str
    classes: int | None

    def to_json(self) -> str:
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)})

    @staticmethod
    def from_json(text: str) -> Training:
        """Raises ArtifactError for text that is none of `to_json`."""
        try:
            found = cast("dict[str, object]", json.loads(text))
            parameters, buffers, metrics = (
                tuple(map(str, cast("list[str]", found[k]))) for k in ("parameters", "buffers", "metrics")
            )
            classes = None if found["classes"] is None else int(cast("int", found["classes"]))
            return Training(
                float(cast("float", found["lr"])), parameters, buffers, metrics, str(found["rate"]), classes
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError("a program that trains", expected="its description", got=str(error)) from error


class TrainingStep(CompiledModel):
    """Called with a batch, it changes the parameters and returns (loss, {metric: value}).

    inputs: the batch's, then the learning rate, which a call may leave out. lr: what it is then.
    """

    def __init__(self, program: Program, *, threads: int | None = None) -> None:
        super().__init__(program, threads=threads)
        self.training = Training.from_json(program.meta[META])
        self._lr = self.training.lr
        self._placed: tuple[object, object] = (None, None)  # a rate and its stream, and the tensor that holds it

    def __call__(self, *args: Any, lr: object = None, **kwargs: Any) -> tuple[object, dict[str, object]]:
        """Make a step. Raises InputError for a batch that does not fit, with the parameters as they were."""
        loss, *measured = self.run(self._flat(args, {**kwargs, "lr": lr}))
        return loss, dict(zip(self.training.metrics, measured, strict=True))

    def _flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        named = dict(kwargs)
        lr = named.pop("lr", None)
        inputs = self._batch(args, named)
        return [*inputs, self._beside(inputs, self.rate(lr))]

    def _batch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The program's inputs without the learning rate."""
        return self._ordered(args, {**kwargs, self.training.rate: None})[:-1]

    def rate(self, lr: object = None) -> np.ndarray:
        """A rate, by default that of calls that give none, in the program's type: float64 where parameters are."""
        return np.asarray(self._lr if lr is None else _rate(lr), numpy_dtype(self.inputs[-1].dtype))

    @property
    def lr(self) -> float:
        """The learning rate of calls that give none. Setting it raises InputError for what is no rate."""
        return self._lr

    @lr.setter
    def lr(self, value: object) -> None:
        self._lr = _rate(value)

    def _beside(self, inputs: Sequence[object], rate: np.ndarray) -> object:
        """The rate where the inputs lie: a copy from the host at each call costs more than a small step, and a caller's
        CUDA graph cannot have it. What is captured fills a tensor of the graph's own, which outlives this one."""
        place = next((x.device for x in inputs if is_tensor(x) and x.is_cuda), None)
        if place is None or self.program.device != "cuda":
            return rate
        torch: Any = sys.modules["torch"]
        key, dtype = (float(rate), callers_stream()), getattr(torch, rate.dtype.name)
        if torch.cuda.is_current_stream_capturing():
            return torch.full((), key[0], dtype=dtype, device=place)
        if self._placed[0] != key:
            self._placed = key, torch.full((), key[0], dtype=dtype, device=place)
        return self._placed[1]

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Run on a batch and say where the time goes, in forward pass, backward pass and optimizer; what is kept from
        the first for the others, and how long."""
        return describe.training(self.program, self._times(self._flat(args, kwargs)), self.program.meta[SECTIONS])

    def state_dict(self) -> Mapping[str, object]:
        """Copies of the model's parameters and buffers, by their names in the model."""
        state = self.state()
        return {name: state[name] for name in (*self.training.parameters, *self.training.buffers)}

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and buffers as a safetensors file."""
        state = self.state()
        names = (*self.training.parameters, *self.training.buffers)
        safetensors.write(Path(path), {name: state[name] for name in names})

    def save_checkpoint(self, path: str | os.PathLike[str], notes: Mapping[str, np.ndarray] | None = None) -> None:
        """Write all that lasts from step to step, the learning rate and the state of random numbers included, as one
        safetensors file; whole or not at all. What goes on from it gives the same bits. notes: arrays to keep with it.
        """
        beside = {_NOTE + name: array for name, array in (notes or {}).items()}
        safetensors.write(Path(path), {**self.state(), **beside, _RATE: np.asarray(self.lr, np.float64)})

    def load_checkpoint(self, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Go on from a checkpoint; the notes in it. Raises InputError for one of another model or optimizer; nothing
        changes then."""
        values = dict(safetensors.read(path))
        if _RATE not in values:
            raise InputError(f"checkpoint {path}", expected="a file that save_checkpoint wrote", got="another")
        lr = float(values.pop(_RATE))
        notes = {k.removeprefix(_NOTE): np.array(values.pop(k)) for k in [*values] if k.startswith(_NOTE)}
        names = {s.spec.name for s in self.program.state}
        if names != values.keys():
            lacks, more = (", ".join(sorted(d)[:5]) for d in (names - values.keys(), values.keys() - names))
            got = "; ".join(f"{word} {some}" for word, some in (("one without", lacks), ("one with", more)) if some)
            fix = "the model, optimizer and options of the step that wrote it"
            raise InputError(f"checkpoint {path}", expected="the state of this step", got=got, fix=fix)
        self.set_state(values)
        self.lr = lr
        return notes

    def save(self, path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None) -> None:
        """Write one file that `ingot.load` reads and that goes on from here, with numpy alone."""
        if weights is not None:
            raise InputError("weights", expected="none: an artifact holds its own", got=str(weights))
        now = self.state()
        state = tuple(
            replace(s, first=np.array(now[s.spec.name], order="C").reshape(-1).view(np.uint8))
            for s in self.program.state
        )
        meta = {**self.program.meta, META: replace(self.training, lr=self.lr).to_json()}
        artifact.save(replace(self.program, state=state, meta=meta), Path(path))

    def __repr__(self) -> str:
        count = sum(s.first.size for s in self.program.state if s.spec.name in self.training.parameters)
        return f"{type(self).__name__}({len(self.training.parameters)} parameters of {count:,} bytes, lr {self.lr:g})"


_RATE, _NOTE = "learning rate", "note:"


def _rate(value: Any) -> float:
    """Of a number, or an array or tensor of one."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise InputError("lr", expected="a finite number, at least 0", got=repr(value))
    return rate
