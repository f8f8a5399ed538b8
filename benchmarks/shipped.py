"""Every ONNX file of a folder against ONNX Runtime, at several sizes: right, and how fast.

    python benchmarks/shipped.py FOLDER [--static] [--untimed] [--filter RE] [--markdown]

Each file runs in a process of its own with a time limit. Sizes that a file leaves open are tried in several ways
(`SIZES`), and the first three that ONNX Runtime takes count. A file is right where every result agrees within
`--tolerance` of its largest number, and unsettled where ONNX Runtime's own results move as far when the last bits of
its inputs do: rounding to levels makes large steps of small ones. `--static` compiles for the sizes of
the first run. Times are medians of runs in turn, theirs over ours: above 1 Ingot is faster.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

# of batches, images (height, width), lengths: texts and frames; then lines of text, samples of sound
SIZES = (
    (1, (224, 224), 48),
    (3, (320, 320), 17),
    (2, (96, 96), 130),
    (1, (48, 320), 16000),
    (2, (48, 200), 512),
    (1, (32, 100), 9000),
)
_RUNS = 3


def shapes(inputs: list, case: int) -> dict[str, list[int]]:
    """A size for every open axis; equal names are equal sizes."""
    batch, image, length = SIZES[case]
    batched = any(spec.shape and not _known(spec.shape[0]) for spec in inputs)
    named: dict[str, int] = {}
    found: dict[str, list[int]] = {}
    for spec in inputs:
        axes = [length] * len(spec.shape)
        if len(spec.shape) == 4 and "float" in spec.type:
            axes = [batch, *image, 3] if _known(spec.shape[3]) else [batch, 3, *image]
        elif axes:
            # states of recurrent layers are [layers, batch, width]
            state = len(axes) == 3 and batched and [_known(d) for d in spec.shape] == [True, False, True]
            axes[1 if state else 0] = batch
        sizes = [
            d if _known(d) else named.setdefault(d, size) if isinstance(d, str) and re.search(r"\w", d) else size
            for d, size in zip(spec.shape, axes, strict=True)
        ]
        found[spec.name] = sizes
    return found


def _known(size: object) -> bool:
    return isinstance(size, int) and size >= 0


def feeds(inputs: list, case: int, most: int = 10) -> dict[str, np.ndarray]:
    """Normal floats; numbers of one element are lengths and rates, as their names say; other integers are small."""
    random = np.random.default_rng(case)
    given: dict[str, np.ndarray] = {}
    for spec in inputs:
        shape = tuple(shapes(inputs, case)[spec.name])
        kind = spec.type.removeprefix("tensor(").removesuffix(")")
        if "float" in kind or kind == "double":
            given[spec.name] = random.standard_normal(shape).astype({"float16": "f2", "double": "f8"}.get(kind, "f4"))
        elif spec.name in ("sr", "rate", "sample_rate"):
            given[spec.name] = np.full(shape, 16000, kind)
        elif "len" in spec.name:
            given[spec.name] = np.full(shape, SIZES[case][2], kind)
        else:
            given[spec.name] = random.integers(0, 2 if kind == "bool" else most, shape).astype(kind)
    return given


def check(path: str, static: bool, timed: bool, tolerance: float) -> dict[str, object]:
    """What `main` tells of one file."""
    import onnxruntime

    import ingot

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 2
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = [*session.get_inputs()]
    cases: list[tuple[dict[str, np.ndarray], list[np.ndarray]]] = []
    for case, most in product(range(len(SIZES)), (10, 3)):  # some tables are short
        try:
            given = feeds(inputs, case, most)
            if len(cases) < _RUNS and not (cases and _same_shapes(cases[-1][0], given)):
                cases.append((given, [np.asarray(found) for found in session.run(None, given)]))
        except Exception as error:  # ONNX Runtime's errors have no common class
            print(f"ONNX Runtime: {str(error)[:200]}", file=sys.stderr)
    if not cases:
        return {"status": "no sizes that ONNX Runtime takes"}
    begin = time.perf_counter()
    dynamic = None
    if static:
        cases = cases[:1]
        dynamic = {n: dict(enumerate(a.shape)) for n, a in cases[0][0].items() if a.ndim}
    model = ingot.compile(path, dynamic=dynamic, threads=2, cache=False)
    seconds = time.perf_counter() - begin
    worst, ratios = 0.0, []
    for given, want in cases:
        got = model(**given)
        for a, b in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                return {"status": f"wrong: {a.dtype}{a.shape}, not {b.dtype}{b.shape}"}
            if b.size and (np.isnan(a) != np.isnan(b)).any():
                return {"status": "wrong: NaN"}
            worst = max(worst, _difference(a, b))
        if timed:
            ratios.append(ratio(partial(session.run, None, given), partial(model, **given)))
    status = "right" if worst <= tolerance else "unsettled" if worst <= 3 * moved(session, cases) else "wrong"
    return {"status": status, "error": worst, "speed": ratios, "compile": seconds, "sizes": len(cases)}


def moved(session, cases: list[tuple[dict[str, np.ndarray], list[np.ndarray]]]) -> float:
    """How far ONNX Runtime's own results move, of their largest numbers, where the last bits of inputs do."""
    random = np.random.default_rng(0)
    worst = 0.0
    for (given, want), _ in product(cases, range(8)):
        floats = {n: a for n, a in given.items() if a.dtype.kind == "f"}
        other = {n: (a * (1 + np.finfo(a.dtype).eps * random.choice((-1, 0, 1), a.shape))) for n, a in floats.items()}
        got = session.run(None, given | {n: a.astype(given[n].dtype) for n, a in other.items()})
        worst = max(worst, *(_difference(a, b) for a, b in zip(got, want, strict=True)))
    return worst


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest, of the largest number that is wanted."""
    off = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return float(np.nanmax(off, initial=0) / max(np.nanmax(np.abs(want), initial=0), 1e-3))


def _same_shapes(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(a[name].shape == b[name].shape for name in a)


def ratio(theirs, ours) -> float:
    """Their median time over ours, of runs in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end or len(times[0]) < 3:
        for run, into in zip((theirs, ours), times, strict=True):
            begin = time.perf_counter()
            run()
            into.append(time.perf_counter() - begin)
    return float(np.median(times[0]) / np.median(times[1]))


def results(files: list[Path], arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, object]]]:
    for path in files:
        command = [sys.executable, __file__, str(path), "--one", "--tolerance", str(arguments.tolerance)]
        command += ["--static"] * arguments.static + ["--untimed"] * arguments.untimed
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout, check=False)
            lines = done.stdout.strip().splitlines()
            found = json.loads(lines[-1]) if done.returncode == 0 and lines else None
            yield path.stem, found or {"status": done.stderr.strip()[-600:] or f"exit code {done.returncode}"}
        except subprocess.TimeoutExpired:
            yield path.stem, {"status": f"no answer in {arguments.timeout} s"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--static", action="store_true", help="compile for the sizes of one run")
    parser.add_argument("--untimed", action="store_true", help="only whether results are right")
    parser.add_argument("--filter", default="", help="of file names")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--tolerance", type=float, default=2e-3)
    parser.add_argument("--markdown", action="store_true", help="rows of a table")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(check(str(arguments.folder), arguments.static, not arguments.untimed, arguments.tolerance)))
        return
    files = [p for p in sorted(arguments.folder.glob("**/*.onnx")) if re.search(arguments.filter, p.name)]
    right = 0
    for name, found in results(files, arguments):
        right += found["status"] == "right"
        speed = found.get("speed")
        numbers = [""] * 3
        if isinstance(speed, list):
            numbers = [f"{found['error']:.0e}", " ".join(f"{s:.2f}" for s in speed), f"{found['compile']:.1f}"]
        cells = [name, str(found["status"]), *numbers]
        print("| " + " | ".join(cells) + " |" if arguments.markdown else "  ".join(cells), flush=True)
    print(f"{right} of {len(files)} right")


if __name__ == "__main__":
    main()
