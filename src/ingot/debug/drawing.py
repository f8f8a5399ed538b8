"""Pictures of an explanation as SVG text: the graph of groups, the timeline, the memory plan.

Colours are CSS classes (`k-contraction`, ...), so that the page's light and dark themes apply. Everything that belongs
to row 7 carries `data-row="7"`, by which the page's script links the pictures and the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

from ingot.debug.explain import Explanation, Row

_BOX, _GAP, _HEIGHT, _RISE = 232, 28, 38, 66
_KINDS = ("contraction", "inverted_bottleneck", "pointwise", "rows", "attention", "window", "scan", "sort")


def kind_class(kind: str) -> str:
    return f"k-{kind}" if kind in _KINDS else "k-other"


def time_text(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def bytes_text(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def _tip(r: Row) -> str:
    lines = [
        f"{r.label} ({r.where})" if r.where else r.label,
        f"{time_text(r.seconds)}, {r.share:.1%} of the call, {r.chunks} chunks",
        f"{r.flops / 1e6:.3g} MFLOP at {r.flops_share:.0%} of peak",
        f"{bytes_text(r.bytes)} at {r.bytes_share:.0%} of the memory's bandwidth",
        f"gives {r.result}",
    ]
    return f"<title>{escape(chr(10).join(lines))}</title>"


def _short(text: str, length: int) -> str:
    return escape(text if len(text) <= length else text[: length - 1] + "…")


class Layers:
    """Boxes in layers by their longest path from an input, with edges from writer to reader.

    reads: of each box those before it that it reads. at: the left upper corner of each.
    """

    def __init__(self, reads: Sequence[Sequence[int]]) -> None:
        layer: list[int] = []
        for sources in reads:
            layer.append(1 + max((layer[s] for s in sources), default=-1))
        members: dict[int, list[int]] = defaultdict(list)
        for i, depth in enumerate(layer):
            members[depth].append(i)
        self.width = max((len(m) for m in members.values()), default=1) * (_BOX + _GAP) + 120
        self.height = 20 + (max(layer, default=0) + 1) * _RISE
        self.at: dict[int, tuple[float, float]] = {}
        for depth, row in members.items():
            left = self.width / 2 - (len(row) * (_BOX + _GAP) - _GAP) / 2
            for n, i in enumerate(row):
                self.at[i] = (left + n * (_BOX + _GAP), 10 + depth * _RISE)
        self.edges = [
            _edge(self.at[s], self.at[i], layer[i] - layer[s]) for i, sources in enumerate(reads) for s in sources
        ]


_STYLE = """<style>svg{background:#fff;font:12px system-ui,sans-serif}rect{fill:#eef2f7;stroke:#8fa3b8}
.dim{fill:#5b6b7b}.edge{fill:none;stroke:#8fa3b8}text{fill:#16202b}@media(prefers-color-scheme:dark){svg{background:#12171d}
rect{fill:#1f2933;stroke:#52667a}.dim{fill:#9fb3c8}text{fill:#e4e9f0}}</style>"""


def node_graph(labels: Sequence[tuple[str, str]], reads: Sequence[Sequence[int]]) -> str:
    """A picture by itself. labels: of each box its two lines. reads: as `Layers` takes them."""
    layers = Layers(reads)
    parts = [_STYLE, *layers.edges]
    for i, (name, detail) in enumerate(labels):
        x, y = layers.at[i]
        parts.append(
            f'<g transform="translate({x:.0f} {y:.0f})"><title>{escape(name)} {escape(detail)}</title>'
            f'<rect width="{_BOX}" height="{_HEIGHT}" rx="6"/><text x="8" y="15">{_short(name, 32)}</text>'
            f'<text class="dim" x="8" y="29">{_short(detail, 34)}</text></g>'
        )
    size = f'width="{layers.width}" height="{layers.height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="graph">{"".join(parts)}</svg>\n'


def graph(e: Explanation) -> str:
    """Groups in layers, with edges from writer to reader."""
    layers = Layers([[s for s in r.reads if s < r.index] for r in e.rows])
    parts = [*layers.edges]
    for r in e.rows:
        x, y = layers.at[r.index]
        parts.append(
            f'<g class="node" data-row="{r.index}" transform="translate({x:.0f} {y:.0f})">{_tip(r)}'
            f'<rect class="{kind_class(r.kind)}" width="{_BOX}" height="{_HEIGHT}" rx="6"/>'
            f'<rect class="heat" y="{_HEIGHT - 4}" width="{max(2.0, _BOX * r.share):.1f}" height="4"/>'
            f'<text x="8" y="15">{_short(r.label, 32)}</text>'
            f'<text class="dim" x="8" y="29">{_short(r.where or r.result, 24)} · {time_text(r.seconds)}</text></g>'
        )
    size = f'width="{layers.width}" height="{layers.height}"'
    return f'<svg class="graph" {size} role="img" aria-label="graph">{"".join(parts)}</svg>'


def _edge(a: tuple[float, float], b: tuple[float, float], layers: int) -> str:
    x1, y1, x2, y2 = a[0] + _BOX / 2, a[1] + _HEIGHT, b[0] + _BOX / 2, b[1]
    if layers <= 1:
        middle = (y1 + y2) / 2
        bend = f"C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
        return f'<path class="edge" d="M{x1:.0f} {y1:.0f}{bend}"/>'
    # around the layers between, further out the more of them there are
    side = max(x1, x2) + _BOX / 2 + min(50, 8 * layers)
    return (
        f'<path class="edge skip" d="M{x1:.0f} {y1:.0f}C{side:.0f} {y1 + 30:.0f} {side:.0f} {y2 - 30:.0f} '
        f'{x2:.0f} {y2:.0f}"/>'
    )


def timeline(e: Explanation) -> str:
    """One call from left to right; the page scales its width."""
    total = e.seconds or 1.0
    parts = []
    for r in e.rows:
        x, w = 1000 * r.begin / total, 1000 * r.seconds / total
        parts.append(
            f'<g data-row="{r.index}">{_tip(r)}<rect class="{kind_class(r.kind)}" x="{x:.3f}" y="0" '
            f'width="{max(w, 0.05):.3f}" height="44"/></g>'
        )
    ticks = "".join(f'<span style="left:{10 * n}%">{time_text(total * n / 10) if n else "0"}</span>' for n in range(11))
    return (
        f'<div class="track"><svg class="timeline" viewBox="0 0 1000 44" preserveAspectRatio="none" role="img" '
        f'aria-label="timeline">{"".join(parts)}</svg><div class="ticks">{ticks}</div></div>'
    )


def memory(e: Explanation) -> str:
    """The arena: steps from left to right, bytes upwards; a buffer is as long as it lives, as high as it is large."""
    arena, steps = max(e.arena, 1), max(e.steps, 1)
    first = {n: i for i, row in enumerate(_first_steps(e)) for n in row}
    parts = []
    for b in e.blocks:
        x, w = 1000 * b.first / steps, 1000 * (b.last - b.first + 1) / steps
        y, h = 300 - 300 * (b.offset + b.nbytes) / arena, 300 * b.nbytes / arena
        note = ", zero around its edge" if b.halo else ""
        tip = f"buffer {b.buffer}: {bytes_text(b.nbytes)} at {b.offset}, steps {b.first} to {b.last}{note}"
        parts.append(
            f'<rect class="{"halo" if b.halo else "block"}" data-row="{first.get(b.first, 0)}" x="{x:.2f}" y="{y:.2f}" '
            f'width="{w:.2f}" height="{max(h, 0.3):.2f}"><title>{escape(tip)}</title></rect>'
        )
    return (
        f'<svg class="memory" viewBox="0 0 1000 300" preserveAspectRatio="none" role="img" aria-label="memory plan">'
        f'{"".join(parts)}</svg><div class="axis"><span>step 0</span><span>arena {bytes_text(e.arena)}</span>'
        f"<span>step {e.steps - 1}</span></div>"
    )


def _first_steps(e: Explanation) -> list[range]:
    """The steps of each row, in order."""
    rows: list[range] = []
    at = 0
    for r in e.rows:
        rows.append(range(at, at + len(r.kernels)))
        at += len(r.kernels)
    return rows
