"""Pages in a headless browser, offline. Tests skip where none is installed."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WIDTHS = (900, 1280, 1920)

# nothing is wider than the window, no text of a picture is printed over another, the theme changes
LAYOUT = """
  const root = document.documentElement, colour = () => getComputedStyle(document.body).backgroundColor;
  const old = colour();
  document.getElementById("theme").click();
  check("theme", colour() !== old);
  check("wider than the window", root.scrollWidth <= window.innerWidth);
  for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([a, p], i) => texts.slice(0, i).forEach(([b, q]) => check(`${a} over ${b}`,
      p.right <= q.left + 1 || q.right <= p.left + 1 || p.bottom <= q.top + 3 || q.bottom <= p.top + 3)));
  }
"""


def check(html: str, script: str, folder: Path, width: int = 1280) -> None:
    """Open a page and run `script` in it, which calls check(NAME, CONDITION). Fails with the names of what does not
    hold, and with errors of the page's own scripts."""
    listen = f"""<script>
      const wrong = [], check = (name, holds) => {{ if (!holds) wrong.push(name); }};
      window.addEventListener("error", event => wrong.push("error: " + event.message));
      window.addEventListener("load", () => {{ {script}
        document.title = "checked:" + wrong.slice(0, 9).join(", "); }});
    </script>"""
    page = folder / "page.html"
    page.write_text(html.replace("<script", f"{listen}<script", 1))
    dom = _browse(["--virtual-time-budget=3000", "--dump-dom", page.as_uri()], folder, width, 900)
    title = re.search(r"<title>([^<]*)</title>", dom)
    assert title is not None and title.group(1) == "checked:", title


def screenshots(html: str, name: str, folder: Path, is_kept: bool) -> None:
    """Take pictures of the page's first 1400 lines of pixels at three widths, the last one in the dark theme. is_kept:
    in docs/pictures, as NAME-WIDTH.png."""
    root = 'root.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches'
    assert root in html
    for width in WIDTHS:
        page, picture = folder / "page.html", (PICTURES if is_kept else folder) / f"{name}-{width}.png"
        page.write_text(html.replace(root, "root.dataset.theme = true") if width == WIDTHS[-1] else html)
        _browse(["--hide-scrollbars", f"--screenshot={picture}", page.as_uri()], folder, width, 1400)
        data = picture.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (width, 1400)
        assert len(data) > 30_000  # an empty page has a tenth of it
        if is_kept:
            image = pytest.importorskip("PIL.Image").open(picture)
            image.convert("RGB").quantize(128).save(picture, optimize=True)


def _browse(words: Sequence[str], folder: Path, width: int, height: int) -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no browser is installed")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
               f"--window-size={width},{height}", *words]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
