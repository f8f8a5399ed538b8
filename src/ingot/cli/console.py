"""Shared parts of the commands: the two streams, exit codes, progress, error messages, tables."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ingot.support import progress
from ingot.support.errors import (
    ArtifactError,
    CompileError,
    DeviceError,
    ImportModelError,
    IngotError,
    InputError,
    LimitError,
    ShapeError,
    UnsupportedOpError,
    printable,
)
from ingot.support.limits import limited, parse_limits
from ingot.support.native import Features

OK, MISMATCH, BAD_INPUT, UNSUPPORTED, FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130
CODES = {
    OK: "done",
    MISMATCH: "compare found a difference, or certify no proof",
    BAD_INPUT: "wrong usage, an invalid input, model or file, or something missing on this machine",
    UNSUPPORTED: "the model has unsupported ops, or an engine of bench could not run it",
    FAILED: "internal error of Ingot: please report it",
    INTERRUPTED: "interrupted",
}

quiet: ContextVar[bool] = ContextVar("ingot.quiet", default=False)  # whether the command was given --quiet

# a file or pipe has no width: 160 columns are wide enough not to wrap the rows of tables
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
out, err = Console(soft_wrap=True, width=_WIDTH), Console(stderr=True, soft_wrap=True)


def escape(text: str) -> str:
    """Escape `text` for printing, so that it is neither rich markup nor a terminal control sequence."""
    return markup.escape(printable(text))


@contextmanager
def command_context(as_json: bool, limits: Sequence[str] | None = None, *, has_progress: bool = True) -> Iterator[None]:
    """Run a command within `limits`: show progress on a terminal's standard error, but not with --json or --quiet, and
    Ingot's errors as one message and an exit code instead of a traceback. has_progress: not for a command that writes
    to the terminal meanwhile."""
    is_shown = has_progress and not as_json and not quiet.get()
    try:
        with limited(parse_limits(limits or ())), _shown_progress() if is_shown else nullcontext():
            yield
    except IngotError as error:
        code = _code(error)
        if as_json:
            ops = [str(op) for op in error.ops] if isinstance(error, UnsupportedOpError) else []
            print_json({"error": str(error), "kind": type(error).__name__, "code": code, "unsupported": ops})
        err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(code) from None
    except MemoryError:
        err.print("[bold red]error:[/] not enough memory for this model at these sizes")
        raise typer.Exit(BAD_INPUT) from None
    except RecursionError:
        err.print("[bold red]error:[/] the model is nested too deeply for Ingot")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:  # an internal error: print the traceback for the report
        if as_json:
            print_json({"error": str(error), "kind": type(error).__name__, "code": FAILED, "unsupported": []})
        err.print(escape(traceback.format_exc().rstrip()), highlight=False)
        err.print("[bold red]error:[/] this is an internal error of Ingot: please report it with the lines above")
        raise typer.Exit(FAILED) from None


def _code(error: IngotError) -> int:
    if isinstance(error, UnsupportedOpError):
        return UNSUPPORTED
    usable = InputError | ImportModelError | ArtifactError | ShapeError | LimitError | DeviceError
    return BAD_INPUT if isinstance(error, usable) and not isinstance(error, CompileError) else FAILED


@contextmanager
def _shown_progress() -> Iterator[None]:
    if not err.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), BarColumn(20), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("start", total=None)

        def listen(stage: str, done: int, total: int) -> None:
            text = escape(stage) + (f" {done}/{total}" if total else "")
            bar.update(task, description=text, completed=done, total=total or None)

        with progress.listening(listen):
            yield


def print_json(value: object) -> None:
    print(json.dumps(_json_value(value), allow_nan=False))


def _json_value(value: object) -> object:
    """The value as JSON types. Numbers that are not finite become null, as JSON cannot represent them."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _json_value(v) for k, v in value.items()}
    return [_json_value(v) for v in value] if isinstance(value, list | tuple) else value


# what LLVM's names of extensions mean to people; of several with one meaning the first that is there
_EXTENSIONS = {
    "avx512f": "AVX-512", "avx2": "AVX2", "avx512vnni": "VNNI", "avxvnni": "VNNI", "avx512bf16": "BF16",
    "avx512fp16": "FP16", "amx-tile": "AMX", "sve": "SVE", "dotprod": "DOTPROD", "i8mm": "I8MM", "bf16": "BF16",
    "fullfp16": "FP16", "v": "V",
}  # fmt: skip


def machine_line(features: Features) -> str:
    """A machine in few words: "znver4 (AVX-512, VNNI, BF16)"."""
    if features.target_name != "cpu":
        return str(features)
    names = [word for name, word in _EXTENSIONS.items() if name in features]
    names = [name for name in dict.fromkeys(names) if name != "AVX2" or "AVX-512" not in names]
    return f"{features.cpu or features.arch} ({', '.join(names) or 'no extensions'})"


def check_writable(outputs: Sequence[Path | None], read: Sequence[Path]) -> None:
    """Raise InputError unless each file to write has an existing folder and differs from the other files: before
    minutes of work, not after them."""
    used_paths = dict.fromkeys(read, "a file that is read")
    for path in filter(None, outputs):
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}", expected="an existing folder", got=str(path.parent))
        if path.is_dir():
            raise InputError(f"cannot write {path}", expected="a file's name", got="a folder")
        for other, what in used_paths.items():
            if _same_file(path, other):
                raise InputError(f"cannot write {path}", expected="a separate file", got=what)
        used_paths[path] = "the file of another result"


def _same_file(a: Path, b: Path) -> bool:
    return a.samefile(b) if a.exists() and b.exists() else a.resolve() == b.resolve()


def plain_table(*heads: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", overflow="fold")
    return table
