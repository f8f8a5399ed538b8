"""Loading an exported program from a `.pt2` file (torch.export.save), and importing one for given sizes."""

from __future__ import annotations

import logging
import pickle
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch.export import ExportedProgram

from ingot.frontends.shared.dynamic import Bound
from ingot.frontends.torch.model import ImportedModel
from ingot.frontends.torch.program import import_exported
from ingot.support.errors import ImportModelError, InputError

# the exceptions of torch.export.load for archives that are damaged or hold something else
_UNREADABLE = (
    RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError, EOFError,
    zipfile.BadZipFile, pickle.UnpicklingError,
)  # fmt: skip


def load_exported(path: Path) -> ExportedProgram:
    """The program in a .pt2 file. Raises ImportModelError for other files."""
    _check_archive(path)
    log = logging.getLogger("torch.export")
    log.disabled = True  # the raised error has all that matters
    try:
        return torch.export.load(path)
    except _UNREADABLE as error:
        raise ImportModelError(
            f"not a readable exported program: {error}", where=str(path), fix="write it with torch.export.save"
        ) from error
    finally:
        log.disabled = False


def _check_archive(path: Path) -> None:
    """Raise ImportModelError for files of torch.save or torch.jit.save: a pickle at the archive's top, no program."""
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


def import_sized(program: ExportedProgram, dynamic: object, zeros: Collection[str] = ()) -> ImportedModel:
    """The program as a graph, with sizes or inclusive bounds for its symbols: {"batch": 1, "length": (1, 512)}.

    True is the same as None: the sizes that the program leaves open. zeros: as in `import_exported`.
    Raises InputError for unknown symbols, and for requests by axis: the program was traced already.
    """
    imported = import_exported(program, zeros=zeros)
    if dynamic is None or dynamic is True:
        return imported
    graph = imported.graph
    symbols = graph.symbols()
    expected = f"sizes or bounds of the program's symbols {list(symbols)}"
    if not isinstance(dynamic, Mapping):
        fix = "name what varies when the program is exported"
        raise InputError("dynamic of an exported program", expected=expected, got=repr(dynamic), fix=fix)
    dims: Mapping[str, Bound] = {name: bound for name, bound in dynamic.items() if name not in zeros}
    if unknown := [name for name in dims if name not in symbols]:
        raise InputError("dynamic (--dim) names no symbol", expected=expected, got=unknown)
    bounds = {name: (low, high) for name, low, high in graph.bounds}
    bounds |= {name: bound for name, bound in dims.items() if isinstance(bound, tuple)}
    graph = replace(graph, bounds=tuple((name, low, high) for name, (low, high) in sorted(bounds.items())))
    fixed = graph.substitute({name: size for name, size in dims.items() if isinstance(size, int)})
    return replace(imported, graph=fixed)
