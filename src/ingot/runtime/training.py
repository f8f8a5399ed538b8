"""A program whose call is a training step. It needs numpy alone."""

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
from ingot.runtime.tensors import current_stream, is_tensor
from ingot.support import safetensors
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, InputError

META = "training"  # the meta entry of a program that trains
SECTIONS = "sections"  # the meta entry with a letter for each step: forward, backward, optimizer


@dataclass(frozen=True)
class Training:
    """The roles of a training program's tensors.

    lr: the default learning rate of a call. parameters, buffers: the names of the state that belongs to the model.
    metrics: the names of the results after the loss. rate: the name of the input for the learning rate. classes: the
    number of classes that the last input of the batch indexes; None if it does not hold class indices.
    """

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
        """Raises ArtifactError for text that `to_json` did not write."""
        try:
            data = cast("dict[str, object]", json.loads(text))
            parameters, buffers, metrics = (
                tuple(map(str, cast("list[str]", data[k]))) for k in ("parameters", "buffers", "metrics")
            )
            classes = None if data["classes"] is None else int(cast("int", data["classes"]))
            return Training(float(cast("float", data["lr"])), parameters, buffers, metrics, str(data["rate"]), classes)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError("a program that trains", expected="its description", got=str(error)) from error


class TrainingStep(CompiledModel):
    """A training step. Called with a batch, it updates the parameters and returns (loss, {metric: value}).

    inputs: the batch, then the learning rate. lr: the learning rate of calls that do not pass one.
    """

    def __init__(self, program: Program, *, threads: int | None = None) -> None:
        super().__init__(program, threads=threads)
        self.training = Training.from_json(program.meta[META])
        self._lr = self.training.lr
        self._cached_rate: tuple[object, object] = (None, None)  # ((rate, stream), the tensor with the rate)

    def __call__(self, *args: Any, lr: object = None, **kwargs: Any) -> tuple[object, dict[str, object]]:
        """Perform a step. Raises InputError for a batch that does not fit, and then leaves the parameters unchanged."""
        loss, *measured = self.run(self._flat_inputs(args, {**kwargs, "lr": lr}))
        return loss, dict(zip(self.training.metrics, measured, strict=True))

    def _flat_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        named = dict(kwargs)
        lr = named.pop("lr", None)
        inputs = self._batch(args, named)
        return [*inputs, self._device_rate(inputs, self.rate(lr))]

    def _batch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The program's inputs without the learning rate."""
        return self._inputs_in_order(args, {**kwargs, self.training.rate: None})[:-1]

    def rate(self, lr: object = None) -> np.ndarray:
        """A learning rate (by default `lr`) in the program's dtype, which is float64 if the parameters are."""
        return np.asarray(self._lr if lr is None else _rate(lr), numpy_dtype(self.inputs[-1].dtype))

    @property
    def lr(self) -> float:
        """The learning rate of calls that do not pass one. Setting it raises InputError for an invalid rate."""
        return self._lr

    @lr.setter
    def lr(self, value: object) -> None:
        self._lr = _rate(value)

    def _device_rate(self, inputs: Sequence[object], rate: np.ndarray) -> object:
        """The rate on the inputs' device. A copy from the host at each call costs more than a small step, and a
        caller's CUDA graph cannot capture it. A captured call fills a tensor of the graph's own, which outlives this
        one."""
        device = next((x.device for x in inputs if is_tensor(x) and x.is_cuda), None)
        if device is None or not self.program.is_on_gpu:
            return rate
        torch: Any = sys.modules["torch"]
        key, dtype = (float(rate), current_stream()), getattr(torch, rate.dtype.name)
        if torch.cuda.is_current_stream_capturing():
            return torch.full((), key[0], dtype=dtype, device=device)
        if self._cached_rate[0] != key:
            self._cached_rate = key, torch.full((), key[0], dtype=dtype, device=device)
        return self._cached_rate[1]

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Run on a batch and report where the time goes, in the forward pass, the backward pass and the optimizer, and
        which values of the forward pass are saved for the others, and for how long."""
        return describe.training(
            self.program, self._times(self._flat_inputs(args, kwargs)), self.program.meta[SECTIONS]
        )

    def state_dict(self) -> Mapping[str, object]:
        """Copies of the model's parameters and buffers, by their names in the model."""
        state = self.state()
        return {name: state[name] for name in (*self.training.parameters, *self.training.buffers)}

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and buffers as a safetensors file."""
        self._write(Path(path), dict(self.state_dict()))

    def save_checkpoint(self, path: str | os.PathLike[str], notes: Mapping[str, np.ndarray] | None = None) -> None:
        """Write the complete training state, including the learning rate and the state of random numbers, as one
        safetensors file, atomically. Training that continues from it gives the same bits. notes: arrays to store in it.
        """
        note_tensors = {_NOTE + name: array for name, array in (notes or {}).items()}
        self._write(
            Path(path), {**self._gathered_state(self.state()), **note_tensors, _RATE: np.asarray(self.lr, np.float64)}
        )

    def load_checkpoint(self, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Continue from a checkpoint. Returns its notes. Raises InputError for a checkpoint of another model or
        optimizer, and then changes nothing."""
        values = dict(safetensors.read(path))
        if _RATE not in values:
            raise InputError(f"checkpoint {path}", expected="a file that save_checkpoint wrote", got="another file")
        lr = float(values.pop(_RATE))
        notes = {k.removeprefix(_NOTE): np.array(values.pop(k)) for k in [*values] if k.startswith(_NOTE)}
        names = {s.spec.name for s in self.program.state}
        if names != values.keys():
            missing, extra = (", ".join(sorted(d)[:5]) for d in (names - values.keys(), values.keys() - names))
            got = "; ".join(f"{word} {some}" for word, some in (("one without", missing), ("one with", extra)) if some)
            fix = "the model, optimizer and options of the step that wrote it"
            raise InputError(f"checkpoint {path}", expected="the state of this step", got=got, fix=fix)
        self.set_state(self._local_state(values))
        self.lr = lr
        return notes

    def _gathered_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The complete values, gathered from all processes, for one file."""
        return state

    def _local_state(self, state: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """This process's part of the complete values."""
        return state

    def _write(self, path: Path, arrays: Mapping[str, Any]) -> None:
        safetensors.write(path, arrays)

    def save(self, path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None) -> None:
        """Write one file that `ingot.load` reads, to continue the training from here with numpy alone."""
        if weights is not None:
            raise InputError("weights", expected="none: an artifact holds its own", got=str(weights))
        values = self.state()
        state = tuple(
            replace(s, initial=np.array(values[s.spec.name], order="C").reshape(-1).view(np.uint8))
            for s in self.program.state
        )
        meta = {**self.program.meta, META: replace(self.training, lr=self.lr).to_json()}
        artifact.save(replace(self.program, state=state, meta=meta), Path(path))

    def __repr__(self) -> str:
        count = sum(s.initial.size for s in self.program.state if s.spec.name in self.training.parameters)
        return f"{type(self).__name__}({len(self.training.parameters)} parameters of {count:,} bytes, lr {self.lr:g})"


_RATE, _NOTE = "learning rate", "note:"


def _rate(value: Any) -> float:
    """The rate as a float, from a number or from an array or tensor with one element."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise InputError("lr", expected="a finite number, at least 0", got=repr(value))
    return rate
