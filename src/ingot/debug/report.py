"""An explanation as one self-contained HTML page: no network, light and dark, the pictures linked with the table."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from pathlib import Path

from ingot.debug import drawing
from ingot.debug.drawing import bytes_text, kind_class, time_text
from ingot.debug.explain import Explanation, Row

# files of their own, so that editors and linters know what they are
STYLE, THEME, _SCRIPT = (Path(__file__).with_name(name).read_text() for name in ("report.css", "theme.js", "report.js"))


def html_report(e: Explanation) -> str:
    """The page. Its data are in a script element of type application/json with the id `data`."""
    data = json.dumps(asdict(e)).replace("<", "\\u003c")
    sizes = ", ".join(f"{name} = {size}" for name, size in e.sizes.items()) or "all sizes fixed"
    heads = ("#", "kernel", "time", "share", "% peak", "% memory", "floor", "chunks", "MFLOP", "bytes")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(e.model)} · ingot explain</title><style>{STYLE}</style></head><body>
<header><div><h1>{escape(e.model)}</h1>
<small>{escape(sizes)} · {escape(e.rates.machine)}</small></div>
<button id="theme" type="button">light / dark</button></header>
<div class="tiles">{_tiles(e)}</div>
<h2>Timeline of one call <input id="zoom" type="range" min="100" max="2000" value="100" aria-label="zoom"></h2>
<div class="scroll">{drawing.timeline(e)}</div>
<h2>Kernels <small>click a head to sort, a row to find it in the pictures</small></h2>
<div class="scroll"><table><thead><tr>{"".join(f"<th>{h}</th>" for h in heads)}</tr></thead>
<tbody>{"".join(map(_row, e.rows))}</tbody></table></div>
<h2>Graph of kernels <small>the bar under a box is its share of the time</small></h2>
<div class="scroll">{drawing.graph(e)}</div>
<h2>Memory plan <small>each buffer by its life and its place; yellow ones keep a border of zeros</small></h2>
<div class="scroll">{drawing.memory(e)}</div>
<script id="data" type="application/json">{data}</script><script>{THEME}{_SCRIPT}</script></body></html>
"""


def _tiles(e: Explanation) -> str:
    tiles = (
        (time_text(e.call_seconds), "a call"),
        (time_text(e.seconds), "of it in kernels"),
        (f"{e.floor / e.seconds:.0%}" if e.seconds else "-", f"of the time is the floor, {time_text(e.floor)}"),
        (f"{len(e.rows)} groups", f"{e.steps} steps"),
        (bytes_text(e.arena), "arena"),
        (bytes_text(e.weights), "weights"),
        (bytes_text(e.code), "code"),
        (f"{e.rates.gflops:.0f} GFLOP/s", "measured multiply-add peak"),
        (f"{e.rates.gbytes:.0f} GB/s", f"measured on {bytes_text(e.rates.working_set)}"),
    )
    return "".join(f"<div><b>{escape(big)}</b><small>{escape(small)}</small></div>" for big, small in tiles)


def _row(r: Row) -> str:
    fused = "".join(f"<li>{escape(op)}</li>" for op in r.fused)
    name = (
        f'<span class="bar {kind_class(r.kind)}" style="width:{max(2, round(90 * r.share))}px"></span>'
        f"<b>{escape(r.label)}</b> <small>{escape(r.where)}</small>"
        f"<details><summary><small>{escape(', '.join(r.kernels))} · {escape(r.result)}</small></summary>"
        f"<ul>{fused}</ul></details><small>stored: {escape(r.apart)}</small>"
    )
    cells = (
        (r.index, str(r.index)),
        (None, name),
        (r.seconds, time_text(r.seconds)),
        (r.share, f"{r.share:.1%}"),
        (r.flops_share, f"{r.flops_share:.0%}" if r.flops else ""),
        (r.bytes_share, f"{r.bytes_share:.0%}"),
        (r.floor, time_text(r.floor)),
        (r.chunks, str(r.chunks)),
        (r.flops, f"{r.flops / 1e6:.3g}" if r.flops else ""),
        (r.bytes, bytes_text(r.bytes)),
    )
    tds = "".join(f"<td>{text}</td>" if v is None else f'<td data-v="{v}">{text}</td>' for v, text in cells)
    return f'<tr data-row="{r.index}">{tds}</tr>'
