"""What the fast tests run of each room of src/ingot: `make coverage`.

    python tools/coverage_by_room.py build/coverage.json [--least 10]

A Markdown table of rooms, and the files with the most lines that no test runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

Counts = Mapping[str, tuple[int, int]]


def files_of(report: Path) -> dict[str, tuple[int, int]]:
    """File below src/ingot -> its statements, and how many of them ran."""
    found: dict[str, tuple[int, int]] = {}
    for name, entry in json.loads(report.read_text())["files"].items():
        parts = Path(name).parts
        # installed or not, the package's own folder is the last of its name
        inner = parts[len(parts) - parts[::-1].index("ingot") :]
        summary = entry["summary"]
        found["/".join(inner)] = summary["num_statements"], summary["covered_lines"]
    return found


def rooms_of(files: Counts) -> dict[str, tuple[int, int]]:
    """Folders side by side in src/ingot, those of frontends and schedules each; what lies in none is "."."""
    rooms: dict[str, tuple[int, int]] = {}
    for name, (statements, ran) in sorted(files.items()):
        folders = name.split("/")[:-1]
        room = "/".join(folders[: 2 if folders[:1] in (["frontends"], ["schedule"]) else 1]) or "."
        before = rooms.get(room, (0, 0))
        rooms[room] = before[0] + statements, before[1] + ran
    return rooms


def table(rooms: Counts) -> str:
    every = sum(n for n, _ in rooms.values()), sum(ran for _, ran in rooms.values())
    rows = [*rooms.items(), ("all", every)]
    lines = [f"| {name} | {n:,} | {100 * ran / max(n, 1):.1f}% |" for name, (n, ran) in rows]
    return "\n".join(["| room | statements | run |", "|---|---|---|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(prog="coverage_by_room")
    parser.add_argument("report", type=Path)
    parser.add_argument("--least", type=int, default=20)
    chosen = parser.parse_args()
    files = files_of(chosen.report)
    print(table(rooms_of(files)))
    missing = sorted(((n - ran, name) for name, (n, ran) in files.items()), reverse=True)
    print("\n".join(["", *(f"{left:5d} {name}" for left, name in missing[: chosen.least] if left)]))


if __name__ == "__main__":
    main()
