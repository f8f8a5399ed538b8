"""What the commands share: the two streams, exit codes, progress, errors as messages, tables."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    ImportModelError,
    IngotError,
    InputError,
    LimitError,
    ShapeError,
    UnsupportedOpError,
    printable,
)
from ingot.support.limits import limited, parse_limits

OK, MISMATCH, BAD_INPUT, UNSUPPORTED, FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130
CODES = {
    OK: "done",
    MISMATCH: "compare found a difference",
    BAD_INPUT: "wrong usage, or an input, model or file that cannot be used",
    UNSUPPORTED: "the model has ops that Ingot lacks, or an engine of bench could not run it",
    FAILED: "Ingot's own failure: please report it",
    INTERRUPTED: "interrupted",
}

# a file or pipe has no width of its own: wide enough that tables keep their rows
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
out, err = Console(soft_wrap=True, width=_WIDTH), Console(stderr=True, soft_wrap=True)


def escape(text: str) -> str:
    """`text` to be printed as it is: neither as rich's markup nor as commands to the terminal."""
    return markup.escape(printable(text))


@contextmanager
def presented(as_json: bool, limits: Sequence[str] | None = None) -> Iterator[None]:
    """Progress on a terminal's standard error; Ingot's errors as one message and an exit code, not as a traceback.

    `limits` hold within.
    """
    try:
        with limited(parse_limits(limits or ())), _shown_progress():
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
        err.print("[bold red]error:[/] the model is nested deeper than Ingot follows")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:  # a fault of Ingot's own: with its traceback, which a report needs
        if as_json:
            print_json({"error": str(error), "kind": type(error).__name__, "code": FAILED, "unsupported": []})
        err.print(escape(traceback.format_exc().rstrip()), highlight=False)
        err.print("[bold red]error:[/] this is a fault of Ingot: please report it with the lines above")
        raise typer.Exit(FAILED) from None


def _code(error: IngotError) -> int:
    if isinstance(error, UnsupportedOpError):
        return UNSUPPORTED
    usable = InputError | ImportModelError | ArtifactError | ShapeError | LimitError
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
    print(json.dumps(_plain(value), allow_nan=False))


def _plain(value: object) -> object:
    """What JSON has words for: it has none for numbers that are not finite, which are null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def check_writable(written: Sequence[Path | None], read: Sequence[Path]) -> None:
    """Raise InputError unless each file's folder is there, and it is neither one that is read nor another that is
    written: said before minutes of work and not after them."""
    taken = dict.fromkeys(read, "one that is read")
    for path in filter(None, written):
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}", expected="an existing folder", got=str(path.parent))
        if path.is_dir():
            raise InputError(f"cannot write {path}", expected="a file's name", got="a folder")
        for other, what in taken.items():
            if _same_file(path, other):
                raise InputError(f"cannot write {path}", expected="a file of its own", got=what)
        taken[path] = "one of another result"


def _same_file(a: Path, b: Path) -> bool:
    return a.samefile(b) if a.exists() and b.exists() else a.resolve() == b.resolve()


def plain_table(*heads: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", overflow="fold")
    return table
