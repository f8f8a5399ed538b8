"""`ingot libingot`: what a C compiler needs to build programs that run artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ingot
from ingot.cli.console import check_writable, command_context
from ingot.runtime import libingot as library
from ingot.support.errors import InputError
from ingot.support.files import atomic_write


def libingot(
    cflags: Annotated[bool, typer.Option("--cflags", help="Print the compiler's flags.")] = False,
    libs: Annotated[bool, typer.Option("--libs", help="Print the source file and the linker's flags.")] = False,
    pc: Annotated[Path | None, typer.Option("--pc", help="Write libingot.pc, for pkg-config.")] = None,
) -> None:
    """Say where libingot is: one C file and its header, which run .ingot files without Python.

    \b
    cc app.c $(ingot libingot --cflags --libs) -o app
    ingot libingot --pc ~/.local/lib/pkgconfig/libingot.pc
    """
    with command_context(as_json=False):
        if not (cflags or libs or pc):
            raise InputError("libingot", expected="--cflags, --libs or --pc FILE", got="none")
        if pc is not None:
            check_writable([pc], [])
            atomic_write(pc, [library.pkg_config(ingot.__version__).encode()])
    flags = [*([library.cflags()] if cflags else []), *([library.libs()] if libs else [])]
    if flags:
        typer.echo(" ".join(flags))
