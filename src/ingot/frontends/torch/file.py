"""A `.pt2` file, as torch.export.save writes it."""

from __future__ import annotations

import logging
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ingot.ir.node import Graph
from ingot.support.errors import ImportModelError, InputError

Bound = int | tuple[int, int | None]
# what torch.export.load raises on archives that are damaged or hold something else
_UNREADABLE = (
    RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError, EOFError,
    zipfile.BadZipFile, pickle.UnpicklingError,
)  # fmt: skip


def load_exported(path: Path) -> torch.export.ExportedProgram:
    """The program in a .pt2 file. Raises ImportModelError for what is none."""
    _check_archive(path)
    log = logging.getLogger("torch.export")
    log.disabled = True  # what matters is in the raised error
    try:
        return torch.export.load(path)
    except _UNREADABLE as error:
        raise ImportModelError(
            f"not a readable exported program: {error}", where=str(path), fix="write it with torch.export.save"
        ) from error
    finally:
        log.disabled = False


def _check_archive(path: Path) -> None:
    """Raise ImportModelError for what torch.save or torch.jit.save wrote: pickled at the archive's top, no program."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = any(name.count("/") == 1 and name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise ImportModelError(
            f"not a readable exported program: {error}", where=str(path), fix="write it with torch.export.save"
        ) from error
    if pickled:
        raise ImportModelError(
            "a module or its weights, not a program", expected="what torch.export.save writes", where=str(path),
            fix="torch.export.save(torch.export.export(net.eval(), (x,)), 'net.pt2')",
        )  # fmt: skip


def sized(graph: Graph, dims: Mapping[str, Bound]) -> Graph:
    """With sizes or bounds for its symbols. Raises InputError for names of none."""
    known = graph.symbols()
    if unknown := [name for name in dims if name not in known]:
        raise InputError("dynamic names no symbol", expected=f"one of the model's symbols {list(known)}", got=unknown)
    bounds = {name: (low, high) for name, low, high in graph.bounds}
    bounds |= {name: bound for name, bound in dims.items() if isinstance(bound, tuple)}
    graph = replace(graph, bounds=tuple((name, low, high) for name, (low, high) in sorted(bounds.items())))
    return graph.substitute({name: size for name, size in dims.items() if isinstance(size, int)})
