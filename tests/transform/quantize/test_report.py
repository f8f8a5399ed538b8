"""The report of a quantized model: in words, and as a page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.transform.quantize.report import Report, Row
from ingot.transform.quantize.search import Point
from tests.debug import browser

ROWS = tuple(
    Row(f"/blocks.{i}/conv{i % 3}/Conv", 1 + i % 2, form, rounding, (2e-4 / (i + 1), 1e-4 / (i + 1)),
        10.0 ** -(3 + i % 4), 4000 * (i + 1), why)
    for i, (form, rounding, why) in enumerate([
        ("int8-shared", "entropy, smoothing 0.5", "-"), ("int8", "min-max, smoothing 0", "-"),
        ("float32", "", "int8 costs 3.1e-03 of the score"), ("bfloat16", "", "int8 saves no time"),
        ("weight4", "", "<b> & co"), ("int8-dynamic", "percentile, smoothing 0.25", "-"),
    ])
)  # fmt: skip
# rungs that lie close together, as the last steps of a search do
POINTS = tuple(
    Point(name, {}, (score, score - 1e-4), seconds, nbytes)
    for name, score, seconds, nbytes in [
        ("float32", 1.0, 2.0e-3, 4_000_000), ("all int8", 0.9931, 0.9e-3, 1_010_000),
        ("all int8-shared", 0.9929, 0.88e-3, 1_000_000), ("all bfloat16", 0.99999, 1.6e-3, 2_000_000),
        ("rung 17 of 40", 0.9989, 1.02e-3, 1_300_000), ("rung 18 of 40", 0.9988, 1.01e-3, 1_290_000),
        ("rung 19 of 40", 0.9987, 1.0e-3, 1_280_000),
    ]
)  # fmt: skip
REPORT = Report(
    machine="znver5", threads=2, seed=0, metric="cosine", at_least=0.998, rows=ROWS, float_scores=(1.0, 1.0),
    scores=POINTS[-1].scores, float_seconds=2.0e-3, seconds=1.0e-3, float_nbytes=4_000_000, nbytes=1_280_000,
    arena=200_000, deviations={"scores": 0.0123, "<boxes>": 0.004}, samples=(22, 10), search_seconds=31.4,
    points=POINTS, rounding={"scores": 2.5e-6},
)  # fmt: skip


def test_the_report_is_in_plain_words() -> None:
    assert "cosine 0.9987 on 22 samples, 0.9986 on 10 held out\n" in REPORT.text()
    accuracy = replace(REPORT, metric="accuracy", float_scores=(0.91, 0.9), scores=(0.905, 0.899))
    assert "accuracy 0.905 on 22 samples, 0.899 on 10 held out; float32 has 0.91 and 0.9\n" in accuracy.text()
    assert "A call takes 1 ms in place of 2 ms, code and weights 1.28 MB in place of 4 MB." in REPORT.to_html()


def test_the_page_is_self_contained() -> None:
    text = REPORT.to_html()
    assert "http" not in text and "url(" not in text
    printed = re.sub("<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<boxes>" not in printed and "&lt;boxes&gt;" in printed and "&lt;b&gt; &amp; co" in printed


def test_a_receipt_has_a_page_without_a_plot() -> None:
    report = Report.of_receipt(REPORT.receipt())
    assert "<svg" not in report.to_html() and "/blocks.0/conv0/Conv" in report.to_html()


def test_one_point_has_a_plot() -> None:
    """Of one score and no time."""
    assert "<svg" in replace(REPORT, points=(Point("float32", {}, (0.0, 0.0), 0.0, 1),), at_least=None).to_html()


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """It sorts each of its tables, and fits the window at three widths."""
    script = """
      const table = document.querySelectorAll("table")[1];
      const cells = () => [...table.tBodies[0].rows].map(r => +r.cells[4].dataset.v);
      table.querySelectorAll("th")[4].click();
      check("sorts down", cells().every((v, i, a) => !i || a[i - 1] >= v) && cells().length === 6);
    """
    for width in browser.WIDTHS:
        browser.check(REPORT.to_html(), browser.LAYOUT + script, tmp_path, width)


@pytest.mark.slow
def test_the_page_in_pictures(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """--update-golden writes those of docs/appendix/pages.md."""
    pytest.importorskip("onnx")
    images = pytest.importorskip("sklearn.datasets").load_digits().images[:64, None].astype(np.float32) / 16
    model = ingot.quantize(
        Path(__file__).parents[3] / "examples" / "digits.onnx", {"image": images}, seconds=3, threads=1
    )
    browser.screenshots(model.report.to_html(), "quantize", tmp_path, bool(request.config.getoption("--update-golden")))
