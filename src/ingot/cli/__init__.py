"""The `ingot` command. It only presents results; `ingot.debug` and `ingot.driver.compile` compute them.

Results go to standard output, progress and errors to standard error. Exit codes: see `console.CODES`. Each command is
a file in this folder and a line in COMMANDS.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

try:
    import rich  # noqa: F401
    import typer
except ImportError as error:
    raise SystemExit(f"the command line needs {error.name}; pip install 'ingot-compiler[cli]'") from error

from ingot import __version__
from ingot.cli.analysis.attribute import attribute
from ingot.cli.bench import bench
from ingot.cli.compare import compare
from ingot.cli.compile import compile_
from ingot.cli.console import CODES, OK
from ingot.cli.dump import dump
from ingot.cli.explain import explain
from ingot.cli.export import export
from ingot.cli.language.chat import chat
from ingot.cli.language.generate import generate
from ingot.cli.libingot import libingot
from ingot.cli.machine import machine
from ingot.cli.quantize import quantize
from ingot.cli.run import run
from ingot.cli.serve import serve
from ingot.cli.train import train
from ingot.cli.tune import tune

COMMANDS = {
    "compile": compile_,
    "export": export,
    "run": run,
    "generate": generate,
    "chat": chat,
    "bench": bench,
    "dump": dump,
    "compare": compare,
    "explain": explain,
    "attribute": attribute,
    "tune": tune,
    "quantize": quantize,
    "train": train,
    "serve": serve,
    "machine": machine,
    "libingot": libingot,
}

app = typer.Typer(
    name="ingot",
    help="Ingot compiles a trained model to one native program, for a CPU, an NVIDIA GPU or in C.",
    epilog="Exit codes: " + "; ".join(f"{code} {text}" for code, text in CODES.items()) + ".",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name)(command)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """The console script."""
    try:
        app()
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
