"""A sample of the tests with the lowest declared or the newest published versions of what Ingot uses.

    python tools/versions.py lowest                      # what pyproject.toml allows at least
    python tools/versions.py newest --every 5
    python tools/versions.py newest --python python3.13 --with torch==2.14.1 --tests tests/frontends/torch
    python tools/versions.py newest --with numpy==2.0.*  # one package pinned

Each set has an environment of its own under `build/versions`, which is made once and kept. uv resolves: with
`lowest-direct` each package that pyproject.toml names gets the lowest version that it allows and that this Python has a
wheel of. Last comes a row of the table in docs/reference/versions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("cli", "onnx", "images", "jax", "keras", "tflite")
TESTING = ("pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "onnxruntime", "scikit-learn", "expecttest")
SHOWN = ("numpy", "llvmlite", "ml-dtypes", "onnx", "jax", "keras", "torch", "triton", "typer", "rich")
RESOLUTION = {"lowest": "lowest-direct", "newest": "highest"}


def environment(kind: str, python: str, extras: list[str], pinned: list[str]) -> Path:
    """The Python of an environment with these packages and the project itself, made where there is none."""
    name = re.sub(r"[^\w.]+", "-", "-".join([kind, Path(python).name, _version(python), *extras, *pinned]))
    folder = ROOT / "build/versions" / name
    interpreter = folder / "bin/python"
    if interpreter.exists():
        return interpreter
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv resolves the versions: pip install uv")
    try:
        _run(uv, "venv", "--quiet", "--python", python, str(folder))
        chosen = [x for extra in extras for x in ("--extra", extra)]
        _run(
            uv, "pip", "install", "--quiet", "--no-build", "--python", str(interpreter), "--resolution",
            RESOLUTION[kind], "-r", "pyproject.toml", *chosen, *pinned,
        )  # fmt: skip
        # no part of what is tried: as they come, beside what is there
        _run(uv, "pip", "install", "--quiet", "--no-build", "--python", str(interpreter), *TESTING)
        _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", str(interpreter), "-e", ".")
    except subprocess.CalledProcessError as error:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(error.returncode)
    return interpreter


def _version(python: str) -> str:
    code = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def versions(interpreter: Path) -> dict[str, str]:
    """Name -> version of what is installed there."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True).stdout
    return {name.lower().replace("_", "-"): version for name, version in json.loads(found).items()}


def test(interpreter: Path, tests: list[str], every: int, workers: str) -> tuple[int, str]:
    """pytest's status, and its count of tests."""
    # the kernels of other versions of LLVM are others
    cache = interpreter.parent.parent / "cache"
    command = [interpreter, "-m", "pytest", "-n", workers, "--every", str(every), "-p", "no:cacheprovider", *tests]
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"INGOT_CACHE_DIR": str(cache)}
    ended = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    print(ended.stdout)
    counts = re.findall(r"^.*\b\d+ (?:passed|failed|errors?)\b.*$", ended.stdout, re.MULTILINE)
    return ended.returncode, re.sub(r" in .*", "", counts[-1]).strip("= ") if counts else "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=RESOLUTION)
    parser.add_argument("--python", default=sys.executable, help="the interpreter")
    parser.add_argument("--extras", default=",".join(EXTRAS), help="of pyproject.toml, by comma")
    parser.add_argument("--with", dest="pinned", action="append", default=[], metavar="REQUIREMENT", help="repeatable")
    parser.add_argument("--tests", action="append", default=[], metavar="PATH", help="repeatable; all by default")
    parser.add_argument("--every", type=int, default=25, help="every Nth of the tests")
    parser.add_argument("--workers", default="auto")
    args = parser.parse_args()
    extras = [extra for extra in args.extras.split(",") if extra]
    interpreter = environment(args.kind, args.python, extras, args.pinned)
    found = versions(interpreter)
    status, counts = test(interpreter, args.tests, args.every, args.workers)
    heads = ["Python", *SHOWN, "tests"]
    cells = [_version(str(interpreter)), *(found.get(name, "") for name in SHOWN), f"{counts}, every {args.every}"]
    for line in (heads, ["---"] * len(heads), cells):
        print("| " + " | ".join(line) + " |")
    return status


if __name__ == "__main__":
    sys.exit(main())
