from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from ingot import ops
from ingot.debug.build import Build, build
from ingot.debug.chrome import chrome_trace
from ingot.debug.explain import Explanation, explain
from ingot.debug.feeds import random_feeds
from ingot.debug.probe import Rates, measure
from ingot.debug.report import html_report
from ingot.debug.source import open_source, read_graph
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32, i64
from ingot.plan.link import Launch
from tests.debug import browser
from tests.debug.models import classifier, save

RATES = Rates("a test's machine <&>", 2, gflops=100.0, gbytes=10.0, working_set=1 << 20)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(read_graph(open_source(save(classifier(), tmp_path_factory.mktemp("m") / "m.onnx"))), threads=2)


@pytest.fixture(scope="module")
def explanation(built: Build) -> Explanation:
    return explain("cls <3>", built, random_feeds(built.program, {"batch": 4}), repeats=3, rates=RATES)


def test_flops_are_those_of_the_sums_of_products(explanation: Explanation):
    batch = 4
    by_place = {r.where: r for r in explanation.rows}
    assert by_place["relu"].flops == 2 * batch * 8 * 8 * 12 * 9
    assert by_place["dense"].flops == 2 * batch * 192 * 5
    assert by_place["softmax"].flops == 0


def test_bytes_are_read_and_written_once(explanation: Explanation):
    dense = next(r for r in explanation.rows if r.where == "dense")
    assert dense.bytes == 4 * (4 * 192 + 192 * 5 + 5 + 4 * 5)


def test_rows_add_up_and_follow_each_other(explanation: Explanation, built: Build):
    assert len(explanation.rows) == len(built.launches)
    assert sum(r.share for r in explanation.rows) == pytest.approx(1)
    assert explanation.seconds == pytest.approx(sum(r.seconds for r in explanation.rows))
    for before, after in pairwise(explanation.rows):
        assert after.begin == pytest.approx(before.begin + before.seconds)
        assert before.index in after.reads
    assert explanation.floor == pytest.approx(sum(max(r.flops / 100e9, r.bytes / 10e9) for r in explanation.rows))


def test_every_group_says_why_it_stores_its_result(explanation: Explanation):
    assert all(r.unfused_reason for r in explanation.rows)
    last = explanation.rows[-1]
    assert last.unfused_reason == "an output of the model"
    assert any("maximum @ relu" in op for r in explanation.rows for op in r.fused)


def test_the_probe_measures_something_plausible():
    rates = measure(1, 1 << 20)
    assert 1 < rates.gflops < 2000
    assert 1 < rates.gbytes < 5000


def test_the_chrome_trace_has_one_slice_per_row(explanation: Explanation):
    events = json.loads(chrome_trace(explanation))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(explanation.rows)
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices)


class _Checker(HTMLParser):
    """Tags must nest; what the page asks of the network is collected."""

    VOID = frozenset({"meta", "input", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.rows: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data") and value:
                self.fetched.append(value)
            if name == "data-row":
                self.rows.add(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_well_formed_and_self_contained(explanation: Explanation):
    page = html_report(explanation)
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    assert not checker.fetched
    assert "http" not in page and "@import" not in page and "url(" not in page
    assert checker.rows == {str(r.index) for r in explanation.rows}
    assert "cls <3>" not in page and "cls &lt;3&gt;" in page
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert data is not None
    assert len(json.loads(data.group(1))["rows"]) == len(explanation.rows)


@pytest.mark.slow
def test_the_page_works_in_a_browser(explanation: Explanation, tmp_path: Path):
    """It sorts, marks a row everywhere and zooms; at three widths it fits the window."""
    script = """
      const rows = () => [...document.querySelectorAll("tbody tr")].map(r => +r.cells[2].dataset.v);
      document.querySelectorAll("th")[2].click();
      check("sorts down", rows().every((v, i, a) => !i || a[i - 1] >= v));
      document.querySelectorAll("th")[2].click();
      check("sorts up", rows().every((v, i, a) => !i || a[i - 1] <= v));
      document.querySelector("svg.graph [data-row='1']").dispatchEvent(new MouseEvent("click", { bubbles: true }));
      check("marks the table", document.querySelector("tr[data-row='1']").classList.contains("on"));
      check("marks the timeline", document.querySelector(".timeline [data-row='1']").classList.contains("on"));
      check("marks one row", document.querySelectorAll("tr.on").length === 1);
      const zoom = document.getElementById("zoom");
      zoom.value = 300; zoom.dispatchEvent(new Event("input"));
      const wide = document.querySelector("svg.timeline").getBoundingClientRect().width;
      check("zooms", wide > 2 * document.querySelector("svg.memory").getBoundingClientRect().width);
      const boxes = [...document.querySelectorAll("svg.memory rect")].map(r => r.getBoundingClientRect());
      check("memory is drawn", boxes.length > 0 && boxes.every(b => b.width > 0 && b.height > 0));
    """
    browser.check(html_report(explanation), script, tmp_path)
    for width in browser.WIDTHS:
        browser.check(html_report(explanation), browser.LAYOUT, tmp_path, width)


@pytest.mark.slow
def test_the_page_in_pictures(tmp_path: Path, request: pytest.FixtureRequest):
    """--update-golden writes those of docs/appendix/pages.md."""
    model = Path(__file__).parents[2] / "examples" / "digits.onnx"
    result = build(read_graph(open_source(model)), threads=1)
    text = html_report(explain(model.name, result, random_feeds(result.program, {"batch": 8})))
    browser.screenshots(text, "explain", tmp_path, bool(request.config.getoption("--update-golden")))


def test_what_lasts_and_what_an_update_moves():
    old, x, at = (
        Input(name, TensorType(t, s))() for name, t, s in (("k", f32, (64, 8)), ("x", f32, (1, 8)), ("at", i64, ()))
    )
    last = Input("last", TensorType(f32, (64, 8)))()
    new = ops.DynamicUpdateSlice()(old, x, at, const(0))
    graph = Graph((x, at, old, last), (new, ops.Reverse((0,))(last)), state=("k", "last"))
    result = build(graph, threads=1)
    explanation = explain("state", result, random_feeds(result.program, {}), repeats=1, rates=RATES)
    assert explanation.state[0] == ("k", "") and "reads other elements" in explanation.state[1][1]
    # the row twice, its place, and what is copied twice
    assert explanation.bytes == 2 * 32 + 8 + 8 + 2 * 64 * 32


def test_launches_cover_all_steps_in_order(built: Build):
    launches: list[Launch] = built.launches
    ends = [(launch.first, launch.last) for launch in launches]
    assert ends[0][0] == 0 and ends[-1][1] == len(built.program.steps)
    assert all(a[1] == b[0] for a, b in pairwise(ends))
