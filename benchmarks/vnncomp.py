"""`ingot certify` on a folder of VNN-COMP: instances.csv, models, properties. The tables of docs/how-to/bounds.md.

python -m benchmarks.vnncomp FOLDER                  each line of its instances.csv
python -m benchmarks.vnncomp FOLDER --seconds 20     the most for each
python -m benchmarks.vnncomp FOLDER --only prop_3    lines that hold this text
python -m benchmarks.vnncomp FOLDER --every 8        each eighth line
python -m benchmarks.vnncomp FOLDER --budget 300     the most processor time for all
python -m benchmarks.vnncomp FOLDER --check          what was decided, once more by ONNX Runtime: 100,000 points of each
                                                     box that is said to hold none, each counterexample

Folders: github.com/ChristopherBrix/vnncomp2023_benchmarks, github.com/stanleybak/vnncomp2021 (unpack what is packed).
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import ingot
from ingot.transform.bounds.search.certify import PROVED, REFUTED, Verdict
from ingot.transform.bounds.search.vnnlib import Property, read_property

SAMPLES = 100_000


def instances(folder: Path, only: str, every: int) -> Iterator[tuple[Path, Path]]:
    (table,) = folder.glob("*instances.csv")
    with table.open(newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) > 1 and only in ",".join(row)]
    for row in rows[::every]:
        model, property_ = (folder / name.strip() for name in row[:2])
        yield (model.with_suffix("") if model.suffix == ".gz" and not model.exists() else model), property_


def least_violation(model: Path, property_: Property, points: np.ndarray) -> float:
    """How far the point that comes nearest is from what must not happen, by ONNX Runtime; at most 0 where it does."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (x,) = session.get_inputs()
    dtype = np.float64 if "double" in x.type else np.float32
    shape = [d if isinstance(d, int) else 1 for d in x.shape]
    is_batch = not isinstance(x.shape[0], int)
    least = np.inf
    for part in np.array_split(points, max(1, len(points) // (1024 if is_batch else 1))):
        y = session.run(None, {x.name: part.astype(dtype).reshape((len(part), *shape[1:]) if is_batch else shape)})[0]
        y = np.asarray(y, np.float64).reshape(len(part), -1)
        for a in property_.alternatives:
            inside = ((part >= a.lower) & (part <= a.upper)).all(1)
            over = part @ a.input_rows.T + y @ a.output_rows.T - a.limits
            worst = over.max(1) if over.shape[1] else np.full(len(part), -np.inf)
            least = min(least, float(worst[inside].min(initial=np.inf)))
    return least


def points_of(property_: Property, count: int, dtype: type) -> np.ndarray:
    """Random points of the boxes, half of them near corners."""
    rng = np.random.default_rng(1)
    boxes = {(a.lower.tobytes(), a.upper.tobytes()): a for a in property_.alternatives}
    found: list[np.ndarray] = []
    for a in boxes.values():
        share = rng.random((max(1, count // len(boxes)), property_.inputs))
        share[::2] = np.round(share[::2])
        points = (a.lower + share * (a.upper - a.lower)).astype(dtype).astype(np.float64)
        found.append(points[((points >= a.lower) & (points <= a.upper)).all(1)])
    return np.concatenate(found)


def check(model: Path, property_: Property, verdict: Verdict) -> str:
    """Empty if ONNX Runtime agrees."""
    if verdict.answer == PROVED:
        import onnx

        is_batch = not onnx.load(str(model)).graph.input[0].type.tensor_type.shape.dim[0].dim_value
        least = least_violation(
            model, property_, points_of(property_, SAMPLES if is_batch else SAMPLES // 10, np.float32)
        )
        return f"WRONG: a point violates by {-least:g}" if least <= 0 else ""
    if verdict.answer == REFUTED:
        assert verdict.counterexample is not None
        least = least_violation(model, property_, verdict.counterexample[0].reshape(1, -1).astype(np.float64))
        return "" if least <= 0 else f"ONNX Runtime's result is {least:.1e} beside it"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path, help="a line for each instance is appended")
    args = parser.parse_args()
    answers: Counter[str] = Counter()
    started, slowest = time.process_time(), 0.0
    for model, path in instances(args.folder, args.only, args.every):
        if time.process_time() - started > args.budget:
            answers["not tried"] += 1
            continue
        before, wall = time.process_time(), time.monotonic()
        try:
            property_ = read_property(path)
            verdict = ingot.certify(str(model), property_, seconds=args.seconds, threads=args.threads)
            answer, detail = verdict.answer, f"{verdict.boxes} boxes, {verdict.reason}"
        except ingot.IngotError as error:
            property_, verdict, answer, detail = None, None, "refused", str(error)
        spent, wall = time.process_time() - before, time.monotonic() - wall
        answers[answer] += 1
        if answer in (PROVED, REFUTED):
            slowest = max(slowest, spent)
        if args.check and verdict is not None and property_ is not None:
            detail += check(model, property_, verdict)
        print(f"{answer:8} {spent:6.2f} s  {model.name} {path.name} {detail}", flush=True)
        if args.json:
            line = {
                "model": model.name,
                "property": path.name,
                "answer": answer,
                "processor_seconds": spent,
                "seconds": wall,
            }
            with args.json.open("a") as file:
                file.write(json.dumps(line | {"detail": detail}) + "\n")
    total = time.process_time() - started
    print(f"{dict(answers)}; the slowest decided {slowest:.2f} s, all {total:.0f} s of processor time")


if __name__ == "__main__":
    main()
