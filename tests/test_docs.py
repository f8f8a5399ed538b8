"""README.md and the first pages of docs/: their code runs as it stands, links lead somewhere, README stays short."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs" / "start").glob("*.md")))
MAX_README_WORDS = 700


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_readme_is_short() -> None:
    assert len(README.read_text().split()) <= MAX_README_WORDS


@pytest.mark.parametrize("page", [README, *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert not [link for link in links if not (page.parent / link.partition("#")[0]).exists()]


@pytest.mark.parametrize("code", [code for page in PAGES for code in blocks(page, "python")])
def test_python(code: str, tmp_path: Path) -> None:
    for package in ("onnx", *(name for name in ("torch",) if f"import {name}" in code)):
        pytest.importorskip(package)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


COMMANDS = [line.partition("#")[0].strip() for block in blocks(README, "sh") for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("ingot ")])
def test_command(command: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = [sys.executable, "-m", "ingot", *shlex.split(command)[1:]]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
