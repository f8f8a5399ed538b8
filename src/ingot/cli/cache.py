"""`ingot cache`: what was compiled before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from ingot.cli.console import command_context, escape, out, plain_table, print_json
from ingot.cli.options import Json
from ingot.debug.drawing import bytes_text
from ingot.runtime import artifact
from ingot.support.cache import DiskCache, Entry

_DAY_SECONDS = 86_400

cache = typer.Typer(
    help="The disk cache: programs and their parts that were compiled before, the least recently used dropped first.",
    no_args_is_help=True,
    add_completion=False,
)


@cache.command("list")
def list_(
    top: Annotated[int, typer.Option(min=0, help="Rows, the latest use first; 0: all.")] = 40, as_json: Json = False
) -> None:
    """List the entries, the latest use first."""
    with command_context(as_json):
        disk = DiskCache()
        entries = sorted(disk.entries(), key=lambda e: -e.used)
    if as_json:
        print_json({"folder": str(disk.folder), "entries": [_facts(e) for e in entries]})
        return
    table = plain_table("key", "kind", "size", "used", left=("key", "kind"))
    for e in entries[:top] if top else entries:
        table.add_row(e.key, _kind(e), bytes_text(e.nbytes), _ago(time.time() - e.used))
    out.print(table)
    if top and len(entries) > top:
        out.print(f"[dim]and {len(entries) - top} older ones (--top 0)[/]")
    _print_total(disk, entries)


@cache.command()
def size(as_json: Json = False) -> None:
    """Print the size of the cache and its limit."""
    with command_context(as_json):
        disk = DiskCache()
        entries = disk.entries()
    if as_json:
        total = sum(e.nbytes for e in entries)
        facts = {"folder": str(disk.folder), "entries": len(entries), "bytes": total, "most_bytes": disk.max_bytes}
        print_json(facts)
        return
    _print_total(disk, entries)


@cache.command()
def clear(
    older_than: Annotated[float, typer.Option(min=0, metavar="DAYS", help="Entries not used for so long.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Delete entries. Measured choices of ingot tune stay."""
    with command_context(as_json):
        disk = DiskCache()
        latest = time.time() - older_than * _DAY_SECONDS
        old = [e for e in disk.entries() if e.used <= latest]
        for e in old:
            disk.discard(e.key)
        freed = sum(e.nbytes for e in old)
    if as_json:
        print_json({"folder": str(disk.folder), "entries": len(old), "bytes": freed})
        return
    out.print(f"deleted {len(old)} entries, {bytes_text(freed)}", highlight=False)


def _print_total(disk: DiskCache, entries: Sequence[Entry]) -> None:
    total = bytes_text(sum(e.nbytes for e in entries))
    max_bytes = bytes_text(disk.max_bytes)
    out.print(f"{escape(str(disk.folder))}: {len(entries)} entries, {total} of at most {max_bytes}", highlight=False)


def _kind(entry: Entry) -> str:
    return "program" if entry.head.startswith(artifact.MAGIC) else "part"


def _facts(entry: Entry) -> dict[str, object]:
    return {"key": entry.key, "kind": _kind(entry), "bytes": entry.nbytes, "used": entry.used}


def _ago(seconds: float) -> str:
    for unit, scale in (("days", _DAY_SECONDS), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.0f} {unit} ago"
    return "just now"
