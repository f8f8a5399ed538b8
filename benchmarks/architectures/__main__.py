"""python -m benchmarks.architectures [NAME ...]: each architecture against eager PyTorch, a line of result each."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from benchmarks.architectures import CASES
from benchmarks.architectures.run import Row, results

MODES = ("static", "dynamic")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures", description=__doc__)
    parser.add_argument("names", nargs="*", help="regular expressions; default: all")
    parser.add_argument("--kind", help="only those of a kind, such as detection")
    parser.add_argument("--shard", metavar="I/N", help="every N-th of them, from the I-th")
    parser.add_argument("--mode", choices=MODES, help="default: both")
    parser.add_argument("--interpreted", action="store_true", help="by the reference interpreter instead of code")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--json", type=Path, help="results as JSON lines, appended")
    parser.add_argument("--table", action="store_true", help="the results as a table of Markdown")
    options = parser.parse_args()
    pattern = re.compile("|".join(options.names))
    chosen = [c for c in CASES if pattern.search(c.name) and options.kind in (None, c.kind)]
    if options.shard:
        first, step = map(int, options.shard.split("/"))
        chosen = chosen[first::step]
    modes = (options.mode,) if options.mode else MODES
    rows: list[Row] = []
    for row in results([(c.name, mode) for c in chosen for mode in modes], options.jobs, options.interpreted):
        rows.append(row)
        print(
            f"{row['result']:8} {row['mode']:8} {row['seconds']:6.1f} s  {row['name']:36} {row['detail']}", flush=True
        )
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if options.table:
        print(table(rows))
    for mode in modes:
        found = [r["result"] for r in rows if r["mode"] == mode and r["result"] != "absent"]
        print(f"{mode}: {found.count('agrees')} of {len(found)} agree")


def table(rows: list[Row]) -> str:
    """| kind | architecture | static | dynamic |, with the difference where it is within the tolerance."""
    cells = {(r["name"], r["mode"]): str(r["detail"] if r["result"] == "agrees" else r["result"]) for r in rows}
    named = sorted((c.kind, c.name) for c in CASES if any((c.name, mode) in cells for mode in MODES))
    lines = ["| kind | architecture | static | dynamic |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {k} | {n} | {' | '.join(cells.get((n, m), '') for m in MODES)} |" for k, n in named])


if __name__ == "__main__":
    main()
