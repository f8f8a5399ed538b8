"""Environment flags. Each use reads them again, so that tests and notebooks can change them at run time."""

from __future__ import annotations

import os
from pathlib import Path

from ingot.support.errors import InputError

MAX_THREADS = 1024


def _integer(name: str, default: int | None, low: int, high: int) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise InputError(
            f"environment variable {name}",
            expected=f"an integer in [{low}, {high}]",
            got=repr(text),
            fix=f"set {name} to such a value or unset it",
        )
    return value


def debug_level() -> int:
    """INGOT_DEBUG=0..5: 1 passes and times, 2 IR after passes that changed it, 3 rewrites, 4 kernels, 5 assembly."""
    return _integer("INGOT_DEBUG", 0, 0, 5) or 0


def verify() -> bool:
    """INGOT_VERIFY=1: verify the graph after every pass and every kernel; INGOT_DEBUG implies it."""
    return _integer("INGOT_VERIFY", 0, 0, 1) == 1 or debug_level() >= 1


def perf_map() -> bool:
    """INGOT_PERF_MAP=1: write the names of kernels for Linux perf to /tmp/perf-PID.map."""
    return _integer("INGOT_PERF_MAP", 0, 0, 1) == 1


def nvtx() -> bool:
    """INGOT_NVTX=1: launch the steps of a program on a GPU one by one, each in an NVTX range of its name."""
    return _integer("INGOT_NVTX", 0, 0, 1) == 1


def fuel() -> int | None:
    """INGOT_FUEL=n: stop optimizing after n rewrites (bisects a miscompile); None is unlimited."""
    return _integer("INGOT_FUEL", None, 0, 2**62)


def winograd() -> bool:
    """INGOT_WINOGRAD=0: no convolution by Winograd's algorithm, whose errors docs/inside/winograd.md has."""
    return _integer("INGOT_WINOGRAD", 1, 0, 1) == 1


def tuning() -> Path | None:
    """INGOT_TUNING=FILE: your database of measured choices, by default tuned.jsonl in the cache folder. INGOT_TUNING=0:
    no measured choices at all, neither yours nor those that come with Ingot (None)."""
    chosen = os.environ.get("INGOT_TUNING", "").strip()
    if chosen == "0":
        return None
    return _path("INGOT_TUNING", chosen) if chosen else cache_dir() / "tuned.jsonl"


def threads() -> int | None:
    """INGOT_THREADS=n: threads of a compiled model that does not say; None means one per available core."""
    return _integer("INGOT_THREADS", None, 1, MAX_THREADS)


def workers() -> int | None:
    """INGOT_WORKERS=n: processes that generate code, at most; 0: in this one. None means one per core, up to four."""
    return _integer("INGOT_WORKERS", None, 0, 64)


def cache_dir() -> Path:
    """INGOT_CACHE_DIR, else $XDG_CACHE_HOME/ingot, else ~/.cache/ingot. The folder need not exist.

    Raises InputError where there is no home folder, or a relative one: it would be another one in each folder.
    """
    chosen = os.environ.get("INGOT_CACHE_DIR", "").strip()
    if chosen:
        return _path("INGOT_CACHE_DIR", chosen)
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    # The XDG base directory specification tells programs to ignore relative paths.
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "ingot"
    home = _path("HOME", "~")
    if not home.is_absolute():
        raise InputError(
            "environment variable HOME", expected="an absolute path", got=repr(str(home)),
            fix="set HOME, or INGOT_CACHE_DIR to a folder for the cache",
        )  # fmt: skip
    return home / ".cache" / "ingot"


def _path(name: str, text: str) -> Path:
    """A path that may begin with a user's home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        fix = "set HOME, or INGOT_CACHE_DIR to a folder for the cache"
        raise InputError(f"environment variable {name}", expected="a home folder", got=repr(text), fix=fix) from error


def cache_bytes() -> int:
    """INGOT_CACHE_MB=n: the disk cache is trimmed to this size, least recently used first (default 4 GiB)."""
    megabytes = _integer("INGOT_CACHE_MB", 4096, 0, 2**40)
    return (megabytes or 0) << 20


def collective_seconds() -> int:
    """INGOT_COLLECTIVE_SECONDS=n: how long a rank waits for another one in a collective before it gives up."""
    return _integer("INGOT_COLLECTIVE_SECONDS", 300, 1, 86400) or 300
