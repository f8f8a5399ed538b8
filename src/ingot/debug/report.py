"""Self-contained HTML pages, light and dark, without a network; that of an explanation links its pictures and table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from pathlib import Path

from ingot.debug import drawing
from ingot.debug.drawing import bytes_text, kind_class, time_text
from ingot.debug.explain import Explanation, Row

# files of their own, so that editors and linters know what they are
_STYLE, _SCRIPT = (Path(__file__).with_name(name).read_text() for name in ("report.css", "report.js"))


def html_report(e: Explanation) -> str:
    """The page. Its data are in a script element of type application/json with the id `data`."""
    sizes = ", ".join(f"{name} = {size}" for name, size in e.sizes.items()) or "all sizes fixed"
    heads = ("#", "kernel", "time", "share", "% peak", "% memory", "floor", "chunks", "MFLOP", "bytes")
    body = f"""<p class="summary">{escape(_summary(e))}</p>
{_advice(e)}{tiles(_facts(e))}
<h2>Time by kind of kernel</h2>{_kinds(e)}
<h2>Timeline of one call <input id="zoom" type="range" min="100" max="2000" value="100" aria-label="zoom"></h2>
<div class="scroll">{drawing.timeline(e)}</div>
<h2>Kernels <small>the slowest first; click a head to sort, a row to find it in the pictures</small></h2>
<div class="scroll table"><table><thead><tr>{"".join(f"<th>{h}</th>" for h in heads)}</tr></thead>
<tbody>{"".join(map(_row, sorted(e.rows, key=lambda r: -r.seconds)))}</tbody></table></div>
<h2>Graph of kernels <small>the bar under a box is its share of the time</small></h2>
<div class="scroll">{drawing.graph(e)}</div>
<h2>Memory plan <small>each buffer by its life and its place; yellow ones keep a border of zeros</small></h2>
<div class="scroll">{drawing.memory(e)}</div>"""
    return page(e.model, "explain", escape(f"{sizes} · {e.rates.machine}"), body, asdict(e))


def page(title: str, command: str, about: str, body: str, data: object, style: str = "") -> str:
    """A page of `ingot COMMAND` in the common style. about, body: HTML. data: JSON types, kept in the page as they are.
    style: CSS of its own."""
    text = json.dumps(data).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)} · ingot {command}</title><style>{_STYLE}{style}</style></head><body>
<header><div><h1>{escape(title)}</h1>
<small>{about}</small></div>
<button id="theme" type="button">light / dark</button></header>
{body}
<script id="data" type="application/json">{text}</script><script>{_SCRIPT}</script></body></html>
"""


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Facts as tiles: a number and its label."""
    cards = "".join(f"<div><b>{escape(figure)}</b><small>{escape(of)}</small></div>" for figure, of in facts)
    return f'<div class="tiles">{cards}</div>'


def bar(shares: Iterable[tuple[str, str, float]]) -> str:
    """A bar of (name, CSS class, share), and its legend."""
    ordered = sorted(shares, key=lambda part: -part[2])
    parts = "".join(f'<span class="{kind}" style="width:{100 * share:.2f}%"></span>' for _, kind, share in ordered)
    legend = "".join(f'<span><i class="{kind}"></i>{escape(name)} {share:.0%}</span>' for name, kind, share in ordered)
    return f'<div class="kinds">{parts}</div><div class="legend">{legend}</div>'


def _summary(e: Explanation) -> str:
    slowest = max(e.rows, key=lambda r: r.seconds, default=None)
    text = f"A call takes {time_text(e.call_seconds)}; the kernels alone could not take less than {time_text(e.floor)}"
    text += " at this machine's measured rates."
    if slowest is not None and e.seconds:
        text += f" The slowest of {len(e.rows)} is {slowest.name}: {slowest.share:.0%} of the time."
    return text


def _advice(e: Explanation) -> str:
    return f'<ul class="advice">{"".join(f"<li>{escape(text)}</li>" for text in e.advice)}</ul>' if e.advice else ""


def _kinds(e: Explanation) -> str:
    shares: dict[str, float] = {}
    for r in e.rows:
        shares[r.kind] = shares.get(r.kind, 0.0) + r.share
    return bar((kind.replace("_", " "), kind_class(kind), share) for kind, share in shares.items())


def _facts(e: Explanation) -> tuple[tuple[str, str], ...]:
    return (
        (time_text(e.call_seconds), "a call"),
        (time_text(e.seconds), f"in {len(e.rows)} kernels"),
        (f"{e.floor / e.seconds:.0%}" if e.seconds else "-", "of that is the floor"),
        (bytes_text(e.arena), "arena"),
        (bytes_text(e.weights), "weights"),
        (bytes_text(e.code), "code"),
        (f"{e.rates.gflops:.0f} GFLOP/s", "measured peak"),
        (f"{e.rates.gbytes:.0f} GB/s", f"measured, {bytes_text(e.rates.working_set)}"),
    )


def _row(r: Row) -> str:
    fused = "".join(f"<li>{escape(op)}</li>" for op in r.fused)
    name = (
        f'<span class="bar {kind_class(r.kind)}" style="width:{max(2, round(90 * r.share))}px"></span>'
        f"<b>{escape(r.label)}</b> <small>{escape(r.where)}</small>"
        f"<details><summary><small>{escape(r.result)} · {escape(', '.join(r.kernels))}</small></summary>"
        f"<ul>{fused}</ul><small>stored: {escape(r.unfused_reason)}</small></details>"
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
