"""The pages "Add an op", "Add a pass" and "Add a target", followed to the letter on a copy of the tree.

<!-- new: FILE -->                 the block below is a new file
<!-- edit: FILE after: LINE -->    it goes behind (`before`, `replace`) the line that is LINE when stripped
<!-- run -->                       it is a command that must succeed
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = re.compile(
    r"<!-- (new|edit|run)(?:: (.*?))?(?: (after|before|replace): (.*?))? -->\n```\w*\n(.*?)```\n", re.DOTALL
)


def _edited(text: str, where: str, line: str, block: str) -> str:
    lines = text.splitlines(keepends=True)
    results = [at for at, one in enumerate(lines) if one.strip() == line]
    assert len(results) == 1, f"{len(results)} lines are {line!r}"
    at = results[0] + (where == "after")
    lines[at : at + (where == "replace")] = [block]
    return "".join(lines)


def _run(command: str, folder: Path) -> None:
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    paths = os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*words, "-p", "no:cacheprovider"] if "pytest" in words else words,
        cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


PAGES = ["add-an-op", "add-a-pass", "add-a-target"]


def _page(name: str) -> str:
    return (ROOT / "docs" / "inside" / f"{name}.md").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_the_page_counts_its_files_and_lines(page: str):
    lines: dict[str, int] = {}
    for what, file, _, _, block in STEP.findall(_page(page)):
        if what != "run":
            lines[file] = lines.get(file, 0) + sum(bool(line.strip()) for line in block.splitlines())
    tests = sum(count for file, count in lines.items() if file.startswith("tests/"))
    assert f"{len(lines)} files and {sum(lines.values())} lines, of which {tests} are tests" in _page(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_works_as_written(page: str, tmp_path: Path):
    for name in ("src", "tests", "tools", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    steps = STEP.findall(_page(page))
    assert {step[0] for step in steps} == {"new", "edit", "run"}
    for what, file, where, line, block in steps:
        path = tmp_path / file
        if what == "new":
            assert not path.exists(), f"{file} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
        elif what == "edit":
            path.write_text(_edited(path.read_text(), where, line, block))
        else:
            _run(block, tmp_path)
    files = [str(tmp_path / step[1]) for step in steps if step[1]]
    _run(shlex.join(["python", "-m", "ruff", "check", *files]), tmp_path)
