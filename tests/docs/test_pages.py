"""README.md and docs/: links lead somewhere, the site builds, and what is neither reference nor record stays short.
Their code: test_blocks.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MAX_README_WORDS, MAX_DOCS_WORDS = 700, 45_000


def test_readme_is_short() -> None:
    assert len(README.read_text().split()) <= MAX_README_WORDS


def test_docs_are_short() -> None:
    pages = [page for part in ("start", "how-to", "inside") for page in (ROOT / "docs" / part).glob("*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= MAX_DOCS_WORDS


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo", "sphinxcontrib.mermaid"):
        pytest.importorskip(package)
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize("page", [README, *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert not [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
