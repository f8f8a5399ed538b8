"""`libingot`: a C file and its header that run artifacts without Python, and what a compiler needs to build them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def cflags() -> str:
    """The folder of `ingot.h`, for a C compiler."""
    return f"-I{FOLDER}"


def libs() -> str:
    """The source to compile and link, and the library that it needs."""
    return f"{FOLDER / 'libingot.c'} -lpthread"


def pkg_config(version: str) -> str:
    """The text of `libingot.pc`, for a folder of `PKG_CONFIG_PATH`."""
    return f"""Name: libingot
Description: runs models compiled by Ingot
Version: {version}
Cflags: {cflags()}
Libs: {libs()}
"""
