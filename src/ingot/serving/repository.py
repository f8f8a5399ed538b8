"""The models of a server by name and version, each with its queue."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import TensorSpec
from ingot.runtime.state import RANDOM
from ingot.serving import protocol
from ingot.serving.batching import Arrays
from ingot.serving.errors import RequestError
from ingot.serving.rows import max_joint_rows
from ingot.serving.scheduler import Observe, Queueing, Scheduler
from ingot.support.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
FIRST_VERSION = "1"


class ServedModel:
    """A version of a model, with its specs and the queue of its requests.

    Raises InputError for a model that keeps state between calls, and for dtypes that the protocol lacks.
    """

    def __init__(
        self,
        name: str,
        version: str,
        model: CompiledModel,
        queueing: Queueing,
        *,
        batch: str | None = None,
        observe: Observe = lambda rows, seconds: None,
    ) -> None:
        """queueing.max_rows: the maximum number of rows of a joint call, if the model's rows are independent (see
        `max_joint_rows`)."""
        check_served(model)
        self.name, self.version, self.model = name, version, model
        self.inputs: tuple[TensorSpec, ...] = model.inputs
        self.outputs: tuple[TensorSpec, ...] = model.outputs
        for spec in (*self.inputs, *self.outputs):
            protocol.datatype(spec)
        self.queueing = replace(queueing, max_rows=max_joint_rows(model, batch, queueing.max_rows))
        self.counts = {"success": 0, "fail": 0, "execution": 0, "rows": 0}
        self.seconds = 0.0
        self._observe, self._lock = observe, threading.Lock()
        self._scheduler = Scheduler(model.run, self.queueing, name, self._record)

    def _record(self, rows: int, seconds: float) -> None:
        with self._lock:
            self.counts["execution"] += 1
            self.counts["rows"] += rows or 1
            self.seconds += seconds
        self._observe(rows, seconds)

    @property
    def waiting(self) -> int:
        return len(self._scheduler)

    def submit(self, inputs: Arrays):
        """A future of the results. Raises RequestError (503) if the queue is full."""
        return self._scheduler.submit(inputs)

    def close(self) -> None:
        self._scheduler.close()


def check_served(model: CompiledModel) -> None:
    """Raise InputError for a model that keeps state from call to call, or runs on another machine."""
    if model.refused is not None:
        raise model.refused
    if model.is_one_program and (state_names := [s.spec.name for s in model.program.state if s.spec.name != RANDOM]):
        fix = "compile it without `state`, with the state as inputs and outputs"
        raise InputError(
            "a server's model", expected="none that keeps state: all clients would share it", got=state_names, fix=fix
        )


class Repository:
    """Served models by name and version. The default version is the largest number."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            versions = self._models.setdefault(model.name, {})
            if model.version in versions:
                raise InputError(
                    f"model {model.name!r}", expected="each version once", got=f"version {model.version} twice"
                )
            versions[model.version] = model
        self.since = time.time()

    def __iter__(self):
        return (model for versions in self._models.values() for model in versions.values())

    def versions(self, name: str) -> list[str]:
        return sorted(self._models.get(name, {}), key=int)

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Raises RequestError (404)."""
        versions = self._models.get(name)
        if versions is None:
            raise RequestError(404, f"model {name[:200]!r}", expected=f"one of {[*self._models]}", got="no such model")
        served = versions.get(self.versions(name)[-1] if version is None else version)
        if served is None:
            raise RequestError(
                404, f"model {name!r}", expected=f"a version of {self.versions(name)}", got=(version or "")[:20]
            )
        return served

    def close(self) -> None:
        for model in self:
            model.close()


def check_name(name: str) -> str:
    """Raise InputError for a name that is not valid in a URL and as a folder's name."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise InputError(
            "a served model's name", expected="letters, digits, '.', '_' and '-'", got=repr(name), fix="use --name"
        )
    return name


def model_files(
    paths: Sequence[Path], name: str | None = None, version: int | None = None
) -> list[tuple[str, str, Path]]:
    """(name, version, file) of each model: named by a file's stem, or by the folders REPOSITORY/NAME/VERSION/model.*,
    as in Triton. name, version: override those of a file. Raises InputError."""
    default_version = FIRST_VERSION if version is None else str(version)
    models = [row for path in paths for row in (_in_repository(path) or [(_stem(path), default_version, path)])]
    if name is not None:
        if len(models) != 1:
            raise InputError("--name", expected="one model", got=len(models))
        models = [(name, *models[0][1:])]
    for row in models:
        check_name(row[0])
    return models


def _stem(path: Path) -> str:
    """The name of a model's file, or of its folder, which may contain dots."""
    return path.resolve().name if path.is_dir() else path.stem


def _in_repository(path: Path) -> list[tuple[str, str, Path]]:
    if not path.is_dir():
        return []
    files = sorted(f for f in path.glob("*/*/model.*") if f.parent.name.isdecimal() and f.suffix not in (".py", ".so"))
    return [(f.parents[1].name, f.parent.name, f) for f in files]
