"""Attributions as one self-contained HTML page, in the style of the explain page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from ingot.debug.attributions.images import as_pixels, data_uri, image_axes
from ingot.debug.report import page as html_page
from ingot.support.dataclass import dataclass

_OWN_STYLE = Path(__file__).with_name("page.css").read_text()
_MAX_EXAMPLES, _MAX_BARS = 16, 40
_PERCENTILE = 99.5  # of magnitudes, drawn in the full colour: a few outliers do not pale the rest
TokenText = Callable[[int], str]


@dataclass(frozen=True)
class Attributions:
    """What was explained. inputs, values: each attributed input, and its attributions, by name. targets: the indices
    of the scores of each example. scores: these scores."""

    model: str
    method: str
    inputs: Mapping[str, np.ndarray]
    values: Mapping[str, np.ndarray]
    targets: Sequence[object]
    scores: Sequence[float]

    def facts(self, top: int) -> dict[str, object]:
        """The same as JSON types, with the `top` elements of each example by magnitude."""
        examples = [
            {
                "target": self.targets[n],
                "score": self.scores[n],
                "inputs": {name: _facts(a[n], top) for name, a in self.values.items()},
            }
            for n in range(len(self.scores))
        ]
        return {"model": self.model, "method": self.method, "examples": examples}


def _facts(a: np.ndarray, top: int) -> dict[str, object]:
    elements = [{"index": list(index), "attribution": float(a[index])} for index in largest(a, top)]
    return {"sum": float(a.sum()), "largest": elements}


def largest(a: np.ndarray, top: int) -> list[tuple[int, ...]]:
    """The indices of the `top` elements by magnitude, largest first; NaN come first."""
    order = np.argsort(-np.abs(np.nan_to_num(a, nan=np.inf)), axis=None, kind="stable")[:top]
    return [tuple(map(int, np.unravel_index(i, a.shape))) for i in order]


def page(a: Attributions, token_text: TokenText | None = None) -> str:
    """The page. Its data are in a script element of type application/json with the id `data`."""
    example_count = min(len(a.scores), _MAX_EXAMPLES)
    rest_note = (
        f"<p><small>and {len(a.scores) - example_count} more examples</small></p>"
        if len(a.scores) > example_count
        else ""
    )
    examples = "".join(_example(a, n, token_text) for n in range(example_count))
    signs = '<span class="positive">raises the score</span> · <span class="negative">lowers it</span>'
    about = f"{escape(a.method.replace('_', ' '))} · {signs}"
    return html_page(a.model, "attribute", about, examples + rest_note, _without_nan(a.facts(_MAX_BARS)), _OWN_STYLE)


def _without_nan(value: object) -> object:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _without_nan(v) for k, v in value.items()}
    return [_without_nan(v) for v in value] if isinstance(value, list) else value


def _example(a: Attributions, n: int, token_text: TokenText | None) -> str:
    sums = " + ".join(f"{float(values[n].sum()):.4g}" for values in a.values.values())
    parts = "".join(_input(name, a.inputs[name][n], a.values[name][n], token_text) for name in a.values)
    target = a.targets[n]
    score = f"score {escape(str(target))}: " if target is not None else "score: "
    return f"<h2>Example {n} <small>{score}{a.scores[n]:.4g}; attributions sum to {sums}</small></h2>{parts}"


def _input(name: str, x: np.ndarray, values: np.ndarray, token_text: TokenText | None) -> str:
    head = f"<h3>{escape(name)} <small>{list(x.shape)}</small></h3>"
    if x.dtype.kind in "iu" and x.ndim == 1:
        return head + _tokens(x, values, token_text)
    axes = image_axes(x.shape)
    if axes is not None:
        flat = values.sum(0 if axes.first else 2)
        photo = data_uri(as_pixels(x, axes))
        return (
            head
            + f'<div class="card images">{_picture(photo, None)}{_picture(photo, flat)}{_picture(None, flat)}</div>'
        )
    if x.ndim == 2 and min(x.shape) > 1:
        return head + f'<div class="card images">{_picture(None, values)}</div>' + _bars(x, values)
    return head + _bars(x, values)


def _strength(values: np.ndarray) -> np.ndarray:
    """Attributions as -1 to 1."""
    finite = np.nan_to_num(values.astype(np.float64), nan=0, posinf=0, neginf=0)
    scale = np.percentile(np.abs(finite), _PERCENTILE) if finite.size else 0
    return np.clip(finite / (scale or np.abs(finite).max(initial=0) or 1), -1, 1)


def _picture(photo: str | None, values: np.ndarray | None) -> str:
    layers = f'<img src="{photo}" alt="input"{" class=pale" if values is not None else ""}>' if photo else ""
    if values is not None:
        strength = _strength(values)
        color = np.where(strength[..., None] > 0, [217, 72, 15], [47, 95, 200])
        alpha = np.sqrt(np.abs(strength))[..., None] * 255  # of perception
        heat = data_uri(np.concatenate([color, alpha], -1).round().astype(np.uint8))
        layers += f'<img class="heat-layer" src="{heat}" alt="attribution">'
    return f'<div class="picture">{layers}</div>'


def _tokens(ids: np.ndarray, values: np.ndarray, token_text: TokenText | None) -> str:
    spans = []
    for token, value, strength in zip(ids.tolist(), values.tolist(), _strength(values).tolist(), strict=True):
        text = str(token) if token_text is None else token_text(token)
        tone = "positive" if strength > 0 else "negative"
        color = f"color-mix(in srgb, var(--{tone}) {0.7 * abs(strength):.0%}, transparent)"
        head = f'<span class="token" style="background:{color}" title="{escape(f"id {token}: {value:.4g}")}">'
        spans.append(f"{head}{escape(text)}<small>{value:+.2g}</small></span>")
    return f'<div class="card tokens">{"".join(spans)}</div>'


def _bars(x: np.ndarray, values: np.ndarray) -> str:
    strengths = _strength(values)
    rows = []
    for index in largest(values, _MAX_BARS):
        strength, side = float(strengths[index]), "positive" if values[index] > 0 else "negative"
        left = 50 if strength > 0 else 50 + 50 * strength
        rows.append(
            f"<tr><td>{escape(str(list(index)))}</td><td>{x[index]:.4g}</td><td>{values[index]:+.4g}</td>"
            f'<td class="axis-cell"><span class="attribution {side}-fill" '
            f'style="left:{left:.2f}%;width:{50 * abs(strength):.2f}%"></span></td></tr>'
        )
    rest = values.size - len(rows)
    rest_note = f"<small>and {rest} smaller ones</small>" if rest else ""
    heads = "<thead><tr><th>element</th><th>value</th><th>attribution</th><th></th></tr></thead>"
    return f'<div class="card"><table class="bars">{heads}<tbody>{"".join(rows)}</tbody></table>{rest_note}</div>'
