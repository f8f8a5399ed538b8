"""docs/reference/supported-ops.md: the ops that each frontend reads, from its tables of rows.

python tools/ops_reference.py          # writes it; tests/tools/test_ops_reference.py checks that it is up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from ingot.frontends.onnx import rows  # noqa: E402, F401  registers them
from ingot.frontends.onnx.call import ROWS as ONNX  # noqa: E402
from ingot.frontends.stablehlo.rows import ROWS as STABLEHLO  # noqa: E402
from ingot.frontends.tensorflow.rows import ROWS as TENSORFLOW  # noqa: E402
from ingot.frontends.tflite.rows import ROWS as TFLITE  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "supported-ops.md"
HEAD = """# Ops that are read

Written by `python tools/ops_reference.py` from the tables of the frontends. What is refused of an op (types,
attributes, operands) is on the page of its format. `ingot inspect FILE` lists what a model has that is not supported;
[an op of your own](../how-to/custom-ops.md) is read, too.
"""


def page(torch: Iterable[str]) -> str:
    """torch: the names of aten's ops, which only an installed PyTorch tells."""
    parts = [HEAD, "## ONNX\n[What is refused](frontends.md). In brackets: opsets from which an op has other rules.\n"]
    for domain in sorted({domain for domain, _ in ONNX}):
        since = {name: sorted(version for version, _ in found) for (d, name), found in ONNX.items() if d == domain}
        names = [name + (f" ({', '.join(map(str, s))})" if len(s) > 1 else "") for name, s in since.items()]
        parts.append(_table(domain or "ai.onnx", names))
    parts.append("## PyTorch\n[What is refused](frontends.md). Ops of aten after PyTorch's own decompositions.\n")
    parts.append(_table("aten", (name.split(".")[1] for name in torch)))
    parts.append("## StableHLO\n[What is refused](stablehlo.md).\n")
    for dialect in sorted({name.split(".")[0] for name in STABLEHLO.real}):
        parts.append(_table(dialect, (n.partition(".")[2] for n in STABLEHLO.real if n.startswith(f"{dialect}."))))
    parts += ["## TensorFlow\n[What is refused](tensorflow.md).\n", _table("ops", TENSORFLOW)]
    parts.append("## TFLite\n[What is refused](tflite.md).\n")
    parts += [_table("operators", TFLITE.real), _table("custom operators", TFLITE.custom)]
    return "\n".join(parts)


def _table(title: str, names: Iterable[str]) -> str:
    """Names by their first letters."""
    ordered = sorted({*names}, key=str.lower)
    lines = [f"| {title}: {len(ordered)} | |", "|---|---|"]
    for letter, group in groupby(ordered, key=lambda name: name[0].upper()):
        lines.append(f"| {letter} | {', '.join(f'`{name}`' for name in group)} |")
    return "\n".join(lines) + "\n"


def aten() -> list[str]:
    from ingot.frontends.torch.aten import ATEN

    return [*ATEN]


if __name__ == "__main__":
    PAGE.write_text(page(aten()))
