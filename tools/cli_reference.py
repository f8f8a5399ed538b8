"""docs/reference/commands.md: every command with its options, from what --help is made of.

python tools/cli_reference.py          # writes it; tests/tools/test_cli_reference.py checks that it is up to date
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

import typer  # noqa: E402
from typer.models import ArgumentInfo, OptionInfo  # noqa: E402

from ingot.cli.commands import GROUPS  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "commands.md"
HEAD = """# Commands

Written by `python tools/cli_reference.py` from what `--help` shows. [The command line](cli.md) says what the figures
mean, and has exit codes and environment variables. All commands have `--quiet`: no progress is shown.
"""
_KINDS = {int: "NUMBER", float: "NUMBER", Path: "FILE", str: "TEXT"}


def page() -> str:
    parts = [HEAD]
    for need, commands in GROUPS.items():
        parts.append(f"## {need}\n")
        for name, place in commands.items():
            module, _, function = place.partition(":")
            found = getattr(import_module(f"ingot.cli.{module}"), function or name)
            verbs: list[tuple[str, Any]] = [(name, found)]
            if isinstance(found, typer.Typer):
                verbs = [
                    (f"{name} {c.name or getattr(c.callback, '__name__', '')}", c.callback)
                    for c in found.registered_commands
                ]
            for words, command in verbs:
                parts += _command(f"ingot {words}", command)
    return "\n".join(parts)


def _command(name: str, command: Callable[..., None]) -> Iterator[str]:
    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition("\b\n")
    yield f"### {name}\n{_escaped(text)}\n"
    if examples.strip():
        yield f"```text\n{examples.strip()}\n```\n"
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    rows = [_row(p, info) for p in parameters for info in get_args(p.annotation)[1:]]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"


def _row(p: Parameter, info: ArgumentInfo | OptionInfo) -> str:
    kinds = {*get_args(get_args(p.annotation)[0]), get_args(p.annotation)[0]} - {type(None)}
    kinds |= {inner for kind in kinds for inner in get_args(kind)}
    metavar = info.metavar or next((text for kind, text in _KINDS.items() if kind in kinds), "")
    spelling = f"`{metavar}`"
    if isinstance(info, OptionInfo):
        # in Annotated the first spelling stands where a default would
        told = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
        name = p.name.replace("_", "-")
        names = told or ([f"--{name}", f"--no-{name}"] if p.default is True else [f"--{name}"])
        spelling = ", ".join(f"`{text}`" for text in names) + (f" {_escaped(metavar)}" if bool not in kinds else "")
    has_default = p.default not in (None, False, Parameter.empty) and bool not in kinds
    return f"| {spelling} | {_escaped(info.help or '')}" + (f" Default: {p.default}." if has_default else "") + " |"


def _escaped(text: str) -> str:
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    return "\n\n".join(paragraphs).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page())
