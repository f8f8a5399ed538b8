"""README.md and docs/: code of the first pages runs as it stands, links lead somewhere, the site builds, and what is
neither reference nor record stays short."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
HOW_TO = ("make-it-faster", "find-a-wrong-result", "quantize", "train")  # others need files that are not here
PAGES = (
    README, *sorted((ROOT / "docs" / "start").glob("*.md")), *(ROOT / "docs" / "how-to" / f"{n}.md" for n in HOW_TO)
)  # fmt: skip
MAX_README_WORDS, MAX_DOCS_WORDS = 700, 45_000


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


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


@pytest.mark.parametrize("code", [code for page in PAGES for code in blocks(page, "python")])
def test_python(code: str, tmp_path: Path) -> None:
    for package in ("onnx", "torch"):
        if package == "onnx" or f"import {package}" in code:
            pytest.importorskip(package)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


COMMANDS = [
    line.partition("#")[0].strip() for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()
]
COMMANDS = [c for c in COMMANDS if c.startswith("ingot ") and "examples/" in c]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = [sys.executable, "-m", "ingot", *shlex.split(command)[1:]]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
