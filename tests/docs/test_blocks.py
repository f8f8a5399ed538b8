"""Code of README.md and docs/: each page is followed from top to bottom in a folder with a copy of examples/.

<!-- file: NAME -->          the block below is a file that later blocks use
<!-- needs: PROGRAM ... -->  it runs where these programs are installed
<!-- not run: REASON -->     it needs what is not here, and is parsed: Python compiles, commands and their options exist

Blocks of python, sh and js run as they stand, each in a process of its own; blocks without a language are drawings and
output. Code spans that begin with `ingot`, and commands of pages that show what was measured, are parsed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
import typer

from ingot.cli.commands import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
START = sorted((DOCS / "start").glob("*.md"))
OWN_TESTS = {"walkthrough.md", "add-an-op.md", "add-a-pass.md", "add-a-target.md"}  # test_walkthrough, test_recipes
FOLLOWED = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", DOCS / "README.md", *START, *sorted((DOCS / "how-to").glob("*.md")),
    *(page for page in sorted((DOCS / "inside").glob("*.md")) if page.name not in OWN_TESTS),
]  # fmt: skip
PAGES = [*FOLLOWED, *(DOCS / "inside" / name for name in sorted(OWN_TESTS)), *sorted((DOCS / "reference").glob("*.md"))]
NOT_RUN = {  # reason: blocks
    "a download": 8, "a server": 5, "an AMD GPU": 1, "an installation": 2, "files of yours": 2, "minutes": 3,
    "the tests themselves": 1,
}  # fmt: skip
BLOCK = re.compile(r"(?:^<!-- (file|needs|not run): (.*?) -->\n)?^( *)```(\w*)\n(.*?)^\3```$", re.MULTILINE | re.DOTALL)
SECONDS = 150  # for a block


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    mark: str = ""
    about: str = ""


def blocks(page: Path) -> list[Block]:
    results = BLOCK.finditer(page.read_text())
    return [Block(m[4], re.sub(rf"^{m[3]}", "", m[5], flags=re.MULTILINE), m[1] or "", m[2] or "") for m in results]


def test_blocks_that_are_not_run() -> None:
    """Few, and for a reason: what a machine without a GPU, a server and downloads cannot do."""
    assert Counter(b.about for page in FOLLOWED for b in blocks(page) if b.mark == "not run") == NOT_RUN


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.stem)
def test_code_is_in_blocks_with_a_language(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    assert not re.findall(r"^ *(?:ingot|python|pip|make|cc|npm) .*--?\w.*$", text, re.MULTILINE)
    plain = [b.text for b in blocks(page) if not b.language and not b.mark]
    assert not [text for text in plain if re.search(r"^(?:ingot|python|pip|import|from) ", text, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    spans = [re.sub(r"\s+", " ", span) for span in re.findall(r"`((?:ingot|python) [^`]+)`", text)]
    lines = [line for b in blocks(page) if b.language == "sh" for line in _commands(b.text)]
    indented = re.findall(r"^    ((?:ingot|python) .*)$", text, re.MULTILINE)
    assert not [problem for line in (*spans, *lines, *indented) for problem in _problems(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_compiles(page: Path) -> None:
    for b in blocks(page):
        if b.language == "python" and page.name not in (*OWN_TESTS, "api.md"):  # which has signatures
            compile(b.text, f"<{page.name}>", "exec")


def _commands(script: str) -> list[str]:
    """The commands of a script, each with the lines that its quotes and backslashes join."""
    commands, open_text = list[str](), ""
    for line in script.replace("\\\n", " ").splitlines():
        open_text += line.strip() + "\n"
        try:
            shlex.split(open_text, comments=True)
        except ValueError:
            continue  # a quote is open
        commands.append(open_text.strip())
        open_text = ""
    assert not open_text, f"no end: {open_text}"
    return commands


def _problems(line: str) -> Iterator[str]:
    """What is wrong with `ingot COMMAND --option`, `python FILE --option`, `python -m MODULE`, `make TARGET`."""
    lexer = shlex.shlex(line.partition(" # ")[0], posix=True, punctuation_chars="&|;()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if set(word) <= set("&|;()"):
            yield from (f"{line}: {problem}" for problem in _problems_of(words))
            words = []
        else:
            words.append(word)


def _problems_of(words: list[str]) -> Iterator[str]:
    options = {word.partition("=")[0] for word in words if re.match(r"--\w", word)}
    match words:
        case ["ingot", name, *rest] if not name.startswith("-") and name[0].islower():
            command: Any = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined,arg-type]
            if command is None:
                yield f"no command {name}"
                return
            for word in rest:  # of a command of several verbs
                command = getattr(command, "commands", {}).get(word, command)
            known_options = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
            yield from sorted(options - known_options)
        case ["python", "-m", module, *_] if module.split(".")[0] in ("benchmarks", "tools", "ingot"):
            folder = ROOT / "src" if module.startswith("ingot") else ROOT
            yield from _unknown(folder.joinpath(*module.split(".")), options)
        case ["python", file, *_] if file.endswith(".py") and "/" in file:
            yield from _unknown((ROOT / file).with_suffix(""), options)
        case ["make", *targets]:
            known_options = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            yield from () if "-C" in targets else sorted(set(targets) - known_options)


def _unknown(program: Path, options: set[str]) -> Iterator[str]:
    """Options that the program's text, or that of its folder, does not name."""
    if program.is_dir():
        text = "".join(path.read_text() for path in program.glob("*.py"))
    elif program.with_suffix(".py").exists():
        near = program.with_suffix(".py").read_text()
        text = near + "".join(path.read_text() for path in program.parent.glob("*.py"))
    else:
        yield f"no {program.relative_to(ROOT)}"
        return
    yield from sorted(option for option in options if f'"{option}"' not in text)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[] if page in START else pytest.mark.slow) for page in FOLLOWED
     if any(b.mark != "not run" and b.language in ("python", "sh", "js") for b in blocks(page))],
)  # fmt: skip
def test_the_page_works_as_written(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.ingot"))
    programs = tmp_path / ".programs"
    programs.mkdir()
    for name, words in (("python", '"$@"'), ("ingot", '-m ingot "$@"')):
        (programs / name).write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}\n")
        (programs / name).chmod(0o755)
    missing: set[str] = set()
    for number, b in enumerate(blocks(page)):
        if b.mark == "file":
            (tmp_path / b.about).write_text(b.text)
        elif b.mark == "not run" or b.language not in ("python", "sh", "js"):
            continue
        elif absent := _absent(b):
            missing |= absent
        else:
            _run(b, tmp_path, number)
    if missing:
        pytest.skip(f"without {', '.join(sorted(missing))}; all else ran")


def _absent(b: Block) -> set[str]:
    """The programs and packages of a block that are not installed."""
    requirements = {"node"} if b.language == "js" else set(b.about.split()) if b.mark == "needs" else set[str]()
    imported = re.findall(r"^(?:import|from) (\w+)", b.text, re.MULTILINE) if b.language == "python" else []
    if ".onnx" in b.text:
        imported.append("onnx")
    if "ingot compare" in b.text or "ingot bench" in b.text:
        imported.append("onnxruntime")
    return {name for name in requirements if shutil.which(name) is None} | {m for m in imported if find_spec(m) is None}


def _run(b: Block, folder: Path, number: int) -> None:
    if b.language == "sh":
        words = ["bash", "-e", "-o", "pipefail", "-c", b.text]
    else:
        file = folder / f"block{number}.{'py' if b.language == 'python' else 'mjs'}"
        file.write_text(b.text)
        words = [sys.executable if b.language == "python" else "node", str(file)]
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    path = f"{folder / '.programs'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PATH": path, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{b.text}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
