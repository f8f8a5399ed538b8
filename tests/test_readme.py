"""README.md: its code runs as it stands, its links lead somewhere, and it stays short."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
MAX_WORDS = 700


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_it_is_short() -> None:
    assert len(TEXT.split()) <= MAX_WORDS


def test_links_lead_to_files() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links and not [link for link in links if not (ROOT / link.partition("#")[0]).exists()]


@pytest.mark.parametrize("code", blocks("python"))
def test_python(code: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


COMMANDS = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("ingot ")])
def test_command(command: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = [sys.executable, "-m", "ingot", *shlex.split(command)[1:]]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
