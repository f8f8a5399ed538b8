"""The options of sessions and runs. Few apply to a compiled program; the others are logged once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

from ingot.support.errors import IngotError, InputError
from ingot.support.log import Log

_log = Log("ingot.onnxruntime")
CPU = "CPUExecutionProvider"


class GraphOptimizationLevel(IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


# of these a file or a device is expected that will not be used: a warning, the others are information
_WARNED_OPTIONS = {"enable_profiling", "optimized_model_filepath"}
# what has no meaning for a compiled program, with ONNX Runtime's default
_IGNORED: dict[str, Any] = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "enable_profiling": False,
    "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
    "execution_order": ExecutionOrder.DEFAULT,
    "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
    "inter_op_num_threads": 0,
    "log_severity_level": -1,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "profile_file_prefix": "onnxruntime_profile_",
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}
_QUIET = {"log_severity_level", "log_verbosity_level", "logid", "profile_file_prefix"}  # of messages: nothing to tell


@cache
def ignored(what: str, is_missed: bool = False) -> None:
    """Log once that an option is ignored. is_missed: as a warning."""
    log = _log.warning if is_missed else _log.info
    log("%s has no meaning for a compiled program, and is ignored", what)


class SessionOptions:
    """Options of a session. Of these count: intra_op_num_threads, and free dimensions that are overridden by name."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self._sizes: dict[str, int] = {}
        self._config: dict[str, str] = {}
        for name, default in _IGNORED.items():
            setattr(self, name, default)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self._sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        ignored("a free dimension's override by denotation")

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._config[key] = value
        ignored(f"the configuration entry {key!r}")

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise InputError("a session's configuration", expected=f"one of {[*self._config]}", got=repr(key))
        return self._config[key]

    def has_providers(self) -> bool:
        return False

    def register_custom_ops_library(self, path: str) -> None:
        fix = "see docs/reference/frontends.md"
        raise InputError("custom ops of ONNX Runtime", expected="ONNX ops", got=path, fix=fix)

    def add_initializer(self, name: str, value: object) -> None:
        raise InputError("weights outside of the model", expected="weights in it, or in its external data", got=name)


class RunTerminated(IngotError):
    """A run was ended by `RunOptions.terminate`."""


class RunOptions:
    """Options of a run. terminate: ends the runs with these options, from any thread, within a second; while it is True
    none begins. The others have no meaning here."""

    def __init__(self) -> None:
        self.log_severity_level, self.log_verbosity_level, self.logid = 2, 0, ""
        self.terminate = self.only_execute_path_to_fetches = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        ignored(f"the run's configuration entry {key!r}")


def check_terminate(options: Any) -> None:
    """Raise RunTerminated if these options, ours or ONNX Runtime's own, end the run."""
    if getattr(options, "terminate", False):
        fix = "set it to False before the next run"
        raise RunTerminated("the run was ended", expected="RunOptions.terminate False", got=True, fix=fix)


def settings(options: object, providers: Iterable[Any] | None) -> tuple[int | None, dict[str, int]]:
    """(threads, sizes by name) of a session, from Ingot's options or those of ONNX Runtime. Logs the ignored ones."""
    for name, default in _IGNORED.items():
        value = getattr(options, name, default)
        is_default = int(value) == int(default) if isinstance(default, int) else value == default
        if not is_default and name not in _QUIET:
            ignored(f"the session option {name} = {value}", name in _WARNED_OPTIONS)
    for provider in provider_names(providers):
        if provider != CPU:
            ignored(f"the provider {provider} (target='cuda:sm_90a' compiles for a GPU)", True)
    threads = getattr(options, "intra_op_num_threads", 0)
    return threads or None, dict(getattr(options, "_sizes", {}))


def provider_names(providers: Iterable[Any] | None) -> Sequence[str]:
    """The names of providers, which stand alone or with their options."""
    return [p if isinstance(p, str) else str(p[0]) for p in providers or ()]
