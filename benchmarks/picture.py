"""Figures of `peers.py` as a picture and a table.

    python benchmarks/picture.py run.json [more.json] --svg docs/pictures/performance.svg

A table goes to standard output.

Every bar is a peer's speed relative to the fastest other engine than Ingot on that model: 1.0 is the best peer.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from math import exp, log
from pathlib import Path
from statistics import median

COLORS = {
    "ingot": "#d9480f", "onnxruntime": "#868e96", "openvino": "#adb5bd", "inductor": "#ced4da", "eager": "#e9ecef",
}  # fmt: skip
BAR, GAP, LEFT, UNIT, TOP = 11, 7, 170, 250, 26  # pixels
LIMIT, SCALE = 2.1, UNIT / 1.05  # the longest bar; pixels of a speed of 1


def medians(paths: list[Path]) -> dict[str, dict[str, float]]:
    """Model -> peer -> median milliseconds; later files replace models of earlier ones."""
    out: dict[str, dict[str, float]] = {}
    for path in paths:
        for model in json.loads(path.read_text())["models"]:
            name = model["name"] + (f" b{model['batch']}" if model["batch"] != 1 else "")
            ran = {peer: found["bursts_s"] for peer, found in model["peers"].items() if found["bursts_s"]}
            out[name] = {peer: 1e3 * median(seconds) for peer, seconds in ran.items()}
    return out


def relative(found: dict[str, float]) -> dict[str, float]:
    """Peer -> how many times as fast as the best engine other than Ingot."""
    best = min(ms for peer, ms in found.items() if peer != "ingot")
    return {peer: best / ms for peer, ms in found.items()}


def svg(table: dict[str, dict[str, float]], about: str = "") -> str:
    """about: the machine, and how it was measured."""
    row = max(map(len, table.values()), default=0) * (BAR + 2) + GAP
    width, height = LEFT + 2 * UNIT + 160, row * len(table) + TOP + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    mark = LEFT + SCALE
    line = f'x1="{mark:.0f}" y1="{TOP + 12}" x2="{mark:.0f}" y2="{height - 10}"'
    out.append(f'<line {line} stroke="#495057" stroke-dasharray="3"/>')
    out.append(f'<text x="{mark:.0f}" y="{TOP + 8}" text-anchor="middle" font-size="10">the best other engine</text>')
    out.append(f'<text x="8" y="16" font-size="11">{escape(about)}</text>')
    order = list(COLORS)
    for i, (model, found) in enumerate(table.items()):
        y = TOP + 20 + i * row
        out.append(f'<text x="{LEFT - 8}" y="{y + 20}" text-anchor="end">{model}</text>')
        speeds = relative(found)
        for j, peer in enumerate(sorted(speeds, key=order.index)):
            top, length = y + j * (BAR + 2), min(speeds[peer], LIMIT) * SCALE
            label = f"{speeds[peer]:.2f}x {peer}, {found[peer]:.2f} ms"
            out.append(f'<rect x="{LEFT}" y="{top}" width="{length:.0f}" height="{BAR}" fill="{COLORS[peer]}"/>')
            halo = 'stroke="white" stroke-width="4" paint-order="stroke"'  # over the line
            out.append(f'<text x="{LEFT + length + 4:.0f}" y="{top + 9}" font-size="9" {halo}>{label}</text>')
    return "\n".join([*out, "</svg>"])


def markdown(table: dict[str, dict[str, float]]) -> str:
    peers = [p for p in COLORS if any(p in found for found in table.values())]
    lines = [f"| model | {' | '.join(peers)} | ingot against the best other |", "|---" * (len(peers) + 2) + "|"]
    gains = []
    for model, found in table.items():
        gains.append(relative(found)["ingot"])
        cells = [f"{found[p]:.2f}" if p in found else "-" for p in peers]
        lines.append(f"| {model} | {' | '.join(cells)} | {gains[-1]:.2f}x |")
    mean = exp(sum(map(log, gains)) / len(gains))
    return "\n".join([*lines, f"| geometric mean |{' |' * len(peers)} {mean:.2f}x |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="files that peers.py --json wrote")
    parser.add_argument("--svg", type=Path, help="write the picture here")
    parser.add_argument("--about", default="", help="the machine, batch and threads, for the picture")
    options = parser.parse_args()
    table = {model: found for model, found in medians(options.runs).items() if "ingot" in found and len(found) > 1}
    if options.svg:
        options.svg.write_text(svg(table, options.about))
    print(markdown(table))


if __name__ == "__main__":
    main()
