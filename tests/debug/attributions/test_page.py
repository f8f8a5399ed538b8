"""The page of attributions, and images as inputs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ingot.debug.attributions.images import as_pixels, image_axes, read_image
from ingot.debug.attributions.page import Attributions, largest, page
from ingot.runtime.program import TensorSpec
from ingot.support.errors import InputError
from tests.debug import browser

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)


def attributions() -> Attributions:
    """Two examples with an image, tokens, a series and a row; NaN and infinity among the values."""
    inputs = {
        "image": RNG.standard_normal((2, 3, 8, 9)).astype(np.float32),
        "ids": RNG.integers(0, 9, (2, 5)),
        "series": RNG.standard_normal((2, 6, 4)).astype(np.float32),
        "<row>": RNG.standard_normal((2, 50)).astype(np.float32),
        "empty": np.zeros((2, 0), np.float32),
    }
    values = {name: RNG.standard_normal(x.shape) for name, x in inputs.items()}
    values["<row>"][0, 3], values["image"][1, 0, 0, 0] = np.nan, np.inf
    return Attributions("m & n", "occlusion", inputs, values, [3, None], [1.5, float("nan")])


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_self_contained() -> None:
    text = page(attributions(), lambda token: f"<{token}>")
    checker = _Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    assert checker.sources and all(source.startswith("data:image/png;base64,") for source in checker.sources)
    assert "http" not in text and "@import" not in text and "url(" not in text
    assert "<row>" not in re.sub("<script.*?</script>", "", text, flags=re.S) and "&lt;row&gt;" in text
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert data is not None
    facts = json.loads(data.group(1))
    assert facts["examples"][0]["inputs"]["<row>"]["largest"][0] == {"index": [3], "attribution": None}
    assert facts["examples"][1]["score"] is None


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """No error, nothing wider than the window at three widths, the theme changes."""
    boxes = """
      const drawn = [...document.querySelectorAll(".picture, .token, .attribution")];
      const boxes = drawn.map(e => e.getBoundingClientRect());
      check("a box", boxes.length && boxes.every(b => b.right <= window.innerWidth && b.height > 0));
    """
    for width in browser.WIDTHS:
        browser.check(page(attributions()), browser.LAYOUT + boxes, tmp_path, width)


def test_largest() -> None:
    assert largest(np.asarray([[1, -3], [np.nan, 2]]), 3) == [(1, 0), (0, 1), (1, 1)]


def test_an_image_as_an_input(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    path = tmp_path / "x.png"
    Image.fromarray(pixels).save(path)
    open_sides = TensorSpec("x", "f32", ("n", 3, "h", "w"))  # type: ignore[arg-type]
    got = read_image(path, open_sides, [0.5, 0.25, 0], [2])
    assert got.dtype == np.float32 and got.shape == (1, 3, 6, 5)
    want = (pixels.transpose(2, 0, 1) / 255 - np.asarray([0.5, 0.25, 0])[:, None, None]) / 2
    np.testing.assert_allclose(got[0], want, rtol=1e-6)
    bytes_last = TensorSpec("x", "u8", (1, 6, 5, 3))
    np.testing.assert_array_equal(read_image(path, bytes_last)[0], pixels)
    assert read_image(path, TensorSpec("x", "f32", (1, 1, 12, 7))).shape == (1, 1, 12, 7)  # grey, resized
    for spec in (TensorSpec("x", "f32", (1, 7)), TensorSpec("x", "i64", (1, 3, 6, 5))):
        with pytest.raises(InputError, match="an image for"):
            read_image(path, spec)
    for mean, std in (([0.1, 0.2], []), ([], [0]), ([float("nan")], [])):
        with pytest.raises(InputError, match="1 or 3 numbers(, none of them 0)?, for x"):
            read_image(path, open_sides, mean, std)
    (tmp_path / "bad.png").write_bytes(path.read_bytes()[:60])
    with pytest.raises(InputError, match="damaged or no image"):
        read_image(tmp_path / "bad.png", open_sides)
    with pytest.raises(InputError, match="expected an image, got No such file or directory"):
        read_image(tmp_path / "absent.png", open_sides)


def test_pixels_of_arrays() -> None:
    for shape, first in (((3, 4, 5), True), ((4, 5, 1), False), ((4, 4, 5), True)):
        axes = image_axes(shape)
        assert axes is not None and axes.first == first
        x = RNG.standard_normal(shape)
        x.reshape(-1)[0] = np.nan
        pixels = as_pixels(x, axes)
        assert pixels.dtype == np.uint8 and pixels.shape == (4, 5, 3)
    assert image_axes((5, 6, 7)) is None and image_axes((3, 4)) is None
