"""The `ingot` command. It only presents results; `ingot.debug` and `ingot.driver.compile` compute them.

Results go to standard output, progress and errors to standard error. Exit codes: see `console.CODES`. Each command is
a file in this folder and a line in `commands.GROUPS`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ingot import __version__


def main() -> None:
    """The console script."""
    if sys.argv[1:] == ["--version"]:  # asked by scripts time and again: nothing is imported for it
        print(__version__)
        return
    from ingot.cli.commands import app

    try:
        app()
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def __getattr__(name: str) -> Any:
    if name == "app":
        from ingot.cli.commands import app

        return app
    raise AttributeError(name)
