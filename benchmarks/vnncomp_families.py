"""Whole families of VNN-COMP by `ingot certify` and by auto_LiRPA (`benchmarks/vnncomp_peer.py`), on a machine's cores.

python -m benchmarks.vnncomp_families OUT.jsonl 300 FOLDER...      at most 300 s in all; folders as for vnncomp.py
python -m benchmarks.vnncomp_families OUT.jsonl 300 FOLDER... --workers 7 --seconds 60

Each worker has two cores of its own. All instances by Ingot first, folder by folder; then auto_LiRPA's in the order of
Ingot's seconds, with alpha-CROWN, and where that took effect once more without. A line of JSON for each is appended.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing as mp
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

CORES = 2
INGOT, ALPHA, CROWN = "ingot", "auto_LiRPA alpha-CROWN", "auto_LiRPA CROWN"
Job = tuple[str, str, str, str]  # engine, family, model, property


def unpacked(path: Path, folder: str) -> Path:
    """The file, or its .gz unpacked into the folder."""
    if path.exists():
        return path
    target = Path(folder) / path.name
    with gzip.open(f"{path}.gz") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    return target


def answer(job: Job, seconds: float) -> dict[str, Any]:
    import ingot
    from ingot.transform.bounds.search.certify import PLAIN_BOXES
    from ingot.transform.bounds.search.vnnlib import read_property

    engine, family, model, property_ = job
    if engine == INGOT:
        decide = partial(ingot.certify, threads=CORES)
    else:
        from benchmarks.vnncomp_peer import certify  # its imports are no part of the time

        decide = partial(certify, threads=CORES, is_alpha=engine == ALPHA)
    with tempfile.TemporaryDirectory() as folder:
        files = [unpacked(Path(f), folder) for f in (model, property_)]
        wall, processor = time.monotonic(), time.process_time()
        line: dict[str, Any] = {"boxes": 0, "is_alpha": False}
        try:
            verdict = decide(str(files[0]), read_property(files[1]), seconds=seconds)
            line |= {"answer": verdict.answer, "boxes": verdict.boxes, "reason": verdict.reason}
            line["is_alpha"] = engine == ALPHA and verdict.boxes > PLAIN_BOXES
        except (ingot.IngotError, NotImplementedError, RuntimeError) as error:
            line |= {"answer": "refused", "reason": str(error)[:200]}
        spent = {"seconds": time.monotonic() - wall, "processor_seconds": time.process_time() - processor}
    names = {"engine": engine, "family": family, "model": Path(model).name, "property": Path(property_).name}
    return names | line | {name: round(value, 3) for name, value in spent.items()}


def work(cores: set[int], seconds: float, pipe: Connection) -> None:
    os.sched_setaffinity(0, cores)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(CORES)
    while True:
        job = pipe.recv()
        pipe.send((job, answer(job, seconds)))


def table(lines: list[dict[str, Any]]) -> str:
    """Counts of each family and engine, over the instances that all engines of the family were given, and over all."""
    keys = sorted({(line["family"], line["engine"]) for line in lines})
    text = ["family, engine: instances, proved, refuted, not decided; seconds of those decided: median, most, sum"]
    for family, engine in keys:
        of_family = [line for line in lines if line["family"] == family]
        given = [{(v["model"], v["property"]) for v in of_family if v["engine"] == e} for f, e in keys if f == family]
        common = set.intersection(*given)
        mine = [line for line in of_family if line["engine"] == engine]
        shared = [v for v in mine if (v["model"], v["property"]) in common]
        for label, chosen in (("all", mine), ("common", shared)):
            counts = Counter(line["answer"] for line in chosen)
            decided = [v["seconds"] for v in chosen if v["answer"] in ("proved", "refuted")]
            took = f"{statistics.median(decided):.2f}, {max(decided):.2f}, {sum(decided):.1f}" if decided else ""
            left = len(chosen) - len(decided)
            text.append(
                f"{family}, {engine}, {label}: {len(chosen)}, {counts['proved']}, {counts['refuted']}, {left}; {took}"
            )
    answers: dict[tuple[str, str, str], set[str]] = {}
    for v in lines:
        answers.setdefault((v["family"], v["model"], v["property"]), set()).add(v["answer"])
    clashes = [key for key, found in answers.items() if {"proved", "refuted"} <= found]
    return "\n".join([*text, f"contradictions: {clashes or 'none'}"])


def main() -> None:
    from benchmarks.vnncomp import instances

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("limit", type=float, help="seconds in all")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) // CORES - 1))
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    end = time.monotonic() + args.limit
    todo: list[tuple[float, Job]] = [  # the key orders them
        (float(i), (INGOT, folder.name, str(model), str(property_)))
        for i, folder in enumerate(args.folders)
        for model, property_ in instances(folder, args.only, args.every)
    ]
    cores, context, lines = sorted(os.sched_getaffinity(0)), mp.get_context("spawn"), []
    idle: list[Connection] = []
    processes: list[Any] = []
    for i in range(args.workers):
        here, there = context.Pipe()
        own = set(cores[i * CORES % len(cores) :][:CORES])
        processes.append(context.Process(target=work, args=(own, args.seconds, there), daemon=True))
        processes[-1].start()
        idle.append(here)
    busy: list[Connection] = []
    while (todo or busy) and time.monotonic() < end:
        todo.sort(key=lambda item: item[0])
        while todo and idle:
            idle[0].send(todo.pop(0)[1])
            busy.append(idle.pop(0))
        for pipe in wait(busy, timeout=max(0.0, end - time.monotonic())):
            assert isinstance(pipe, Connection)
            (engine, *names), line = pipe.recv()
            busy.remove(pipe)
            idle.append(pipe)
            lines.append(line)
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            following = ALPHA if engine == INGOT else CROWN if line["is_alpha"] else ""
            if following and line["answer"] != "refused":
                order = line["seconds"] if engine == INGOT else line["seconds"] + args.seconds
                todo.append((1000 + order, (following, *names)))
    for process in processes:
        process.kill()
    print(f"{len(lines)} runs, {len(busy)} cut off, {len(todo)} not begun\n{table(lines)}", flush=True)


if __name__ == "__main__":
    main()
