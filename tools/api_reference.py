"""docs/reference/api.md: the public classes and functions, written from their signatures and docstrings.

python tools/api_reference.py          # writes it; tests/tools/test_api_reference.py checks that it is up to date
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

import ingot  # noqa: E402

HEAD = """# API reference

Written by `python tools/api_reference.py` from signatures and docstrings. What is not on this page is internal.
"""
_ELSEWHERE = ("train", "Adversary", "bounds", "certify", "attack")  # in sections of their own
SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Compile and run": (
        "",
        tuple(f"ingot.{name}" for name in ingot.__all__ if not name.startswith("__") and not name.endswith("Error")
           and name not in _ELSEWHERE),
    ),
    "Bounds": (
        "See [bounds.md](../how-to/bounds.md).",
        ("ingot.bounds", "ingot.transform.bounds.run.Bounds", "ingot.certify",
         "ingot.transform.bounds.search.certify.Verdict", "ingot.transform.bounds.search.vnnlib.Property",
         "ingot.transform.bounds.search.vnnlib.Alternative", "ingot.attack",
         "ingot.transform.bounds.search.attack.Adversarial"),
    ),
    "Train": (
        "See [training.md](training.md).",
        ("ingot.train", "ingot.Adversary", "ingot.transform.train.run.CompiledStep",
         "ingot.runtime.training.TrainingStep", "ingot.optim.SGD", "ingot.optim.Adam", "ingot.optim.AdamW",
         "ingot.optim.Lion", "ingot.optim.Group"),
    ),
    "Errors": (
        "Every error that Ingot raises on purpose says what was expected, what it got, where, and what to do.",
        ("ingot.IngotError", "ingot.InputError", "ingot.ConstraintError", "ingot.ImportModelError",
         "ingot.UnsupportedOpError", "ingot.ShapeError", "ingot.CompileError", "ingot.LimitError", "ingot.DeviceError",
         "ingot.ArtifactError", "ingot.VerifyError"),
    ),
    "Extend": (
        "What [ops](../inside/add-an-op.md), [passes](../inside/add-a-pass.md) and "
        "[targets](../inside/add-a-target.md) are made of.",
        ("ingot.ir.node.Op", "ingot.ir.node.Node", "ingot.ir.node.Graph", "ingot.ir.rewrite.Rule",
         "ingot.ir.rewrite.rewrite", "ingot.ir.interp.interpret", "ingot.pipeline.target.Target",
         "ingot.pipeline.target.Options", "ingot.runtime.device.Device", "ingot.runtime.device.Loaded"),
    ),
}  # fmt: skip


def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


class _Written(str):
    """An annotation that is shown as it is written."""

    def __repr__(self) -> str:
        return str(self)


def _signature(value: Any) -> str:
    """Without `self`; long ones an argument a line."""
    signature = inspect.signature(value)
    parameters = [
        p.replace(annotation=_Written(p.annotation) if isinstance(p.annotation, str) else p.annotation)
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    returns = signature.return_annotation
    returns = _Written(returns) if isinstance(returns, str) else returns
    text = str(signature.replace(parameters=parameters, return_annotation=returns))
    if len(text) < 90:
        return text
    inside, _, returns = text[1:].rpartition(")")
    return "(\n    " + ",\n    ".join(_split(inside)) + ",\n)" + returns


def _split(arguments: str) -> list[str]:
    """At commas outside of brackets."""
    out, depth = [""], 0
    for letter in arguments:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            out.append("")
        else:
            out[-1] += letter
    return [part.strip() for part in out]


def _text(value: Any) -> str:
    """A docstring as Markdown: what is indented in it is code, or the arguments' list."""
    doc = inspect.getdoc(value) or ""
    out: list[str] = []
    listed = False
    for line in doc.splitlines():
        if line in ("Args:", "Arguments:"):
            listed = True
            out += ["Arguments:", ""]
        elif listed and (entry := re.match(r" {4}(\w[\w, ]*): (.*)", line)):
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            out.append(f"- {names}: {entry[2]}")
        elif listed and line.startswith(" " * 8):
            out.append("  " + line.strip())
        else:
            listed = listed and line == ""
            out.append(line)
    return "\n".join(out)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the class or a base of Ingot's own documents, in the order of the text."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("ingot"):
            continue
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            documented = inspect.isfunction(function) or isinstance(function, property)
            if documented and function.__doc__ and name not in seen:
                if not name.startswith("_") or name == "__call__":
                    yield name, function
                seen.add(name)


def _entry(path: str) -> Iterator[str]:
    value = _found(path)
    module, _, short = path.rpartition(".")
    yield f"### {path if module == 'ingot' else short}\n"
    if module != "ingot":
        yield f"`from {module} import {short}`\n"
    if not inspect.isclass(value):
        yield f"```python\n{short}{_signature(value)}\n```\n"
        yield _text(value) + "\n"
        return
    yield _text(value) + "\n"
    if issubclass(value, Exception):
        return
    for member, function in _members(value):
        if isinstance(function, property):
            yield f"#### {short}.{member}\n"
        else:
            yield f"#### {short}.{member}\n\n```python\n{member}{_signature(function)}\n```\n"
        yield _text(function) + "\n"


def page() -> str:
    parts = [HEAD]
    for title, (words, paths) in SECTIONS.items():
        parts.append(f"## {title}\n")
        if words:
            parts.append(words + "\n")
        for path in paths:
            parts += _entry(path)
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "api.md").write_text(page())
