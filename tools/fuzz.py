"""Damaged files and random models, by seed: what is refused, with a clear error, in bounded time and memory.

    python tools/fuzz.py onnx 0:200000            # mutated ONNX files: read, then compiled up to kernel IR
    python tools/fuzz.py tflite 0:20000           # and so stablehlo, bytecode, tensorflow, torchscript, keras, gguf,
                                                  # safetensors: files of these formats: read
    python tools/fuzz.py onnx-called 0:20000      # the same files, compiled and called under guard pages; and so
                                                  # tflite, stablehlo, tensorflow, gguf, safetensors, ingot
    python tools/fuzz.py ingot 0:200000           # mutated programs: raw bytes, and plans under right digests: loaded
    python tools/fuzz.py graphs 0:20000           # random graphs: compiled, run, compared with the interpreter
    python tools/fuzz.py onnx-graphs 0:10000      # random ONNX graphs: compiled, run, compared with ONNX Runtime
    python tools/fuzz.py models 0:10000 --folder F   # SEED.onnx and SEED.npz of a folder (tools/nnsmith_models.py):
                                                  # compiled, run, compared with ONNX Runtime
    python tools/fuzz.py onnx 1234:1235 --show    # one seed again, with its traceback

A seed always makes the same case, whatever was run before. Results lie in --state (fuzz-KIND.json), after every hundred
seeds, so that a run goes on where it was stopped; what is found is also a line of fuzz-KIND.findings, which is
only added to. What all seeds need is prepared once; a worker is forked from there,
with limits, and replaced after twenty thousand seeds. A seed that ends it, or is silent for --patience seconds, is
counted as `killed`, and the next worker goes on behind it.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tools.mutations import mutate_bytes, mutate_json, mutate_message  # noqa: E402

SECONDS, MEGABYTES = 2.0, 500  # of processor time, and of memory beyond what the worker had
_SEEDS = 100  # between two messages of progress
_SHARE = 20_000  # seeds of one worker: what it keeps counts as memory of the seeds behind
_SHARE_CALLED = 500  # where it keeps code, too
Case = Callable[[int], None]  # runs a seed; an IngotError is a refusal, anything else a fault


# --- cases


@cache
def onnx_corpus() -> tuple[bytes, ...]:
    """Small valid models: the node cases of the installed onnx."""
    from onnx.backend.test.case.node import collect_testcases

    cases = sorted(collect_testcases(None), key=lambda c: c.name)
    texts = (c.model.SerializeToString() for c in cases if c.model is not None)
    return tuple(t for t in texts if len(t) < 1 << 16)


def mutated_onnx(seed: int) -> bytes:
    import onnx

    rng = random.Random(seed)
    data = rng.choice(onnx_corpus())
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    model = onnx.ModelProto.FromString(data)
    names = [n for node in model.graph.node for n in (*node.input, *node.output, node.op_type)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        mutate_message(model, rng, names)
    return model.SerializeToString()


@cache
def _scratch(process: int) -> Path:
    """A folder for the files of this process, in memory: a disk takes longer than to refuse a file."""
    memory = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
    atexit.register(folder.cleanup)
    return Path(folder.name)


_lowered: set[bytes] = set()  # by digest: half of the mutations change nothing that is compiled


def run_onnx(seed: int) -> None:
    """A mutated file, as `ingot.compile` reads it, up to kernel IR; a graph that was lowered before, only read."""
    from ingot.frontends.onnx import import_onnx
    from ingot.ir.dims import likely_sizes
    from ingot.pipeline.build import identity, size_hints
    from ingot.support.limits import Limits, limited
    from tests.growth import lowered

    path = _scratch(os.getpid()) / "m.onnx"
    path.write_bytes(mutated_onnx(seed))
    with limited(Limits(seconds=20)):
        graph = import_onnx(path)
        digest = hashlib.blake2b(b"".join(identity(graph)), digest_size=16).digest()
        if digest in _lowered:
            return
        with likely_sizes(size_hints(graph)):
            lowered(graph)
        _lowered.add(digest)


@cache
def programs() -> tuple[bytes, ...]:
    """Saved programs of a few random graphs."""
    from ingot.pipeline.build import build_program
    from ingot.runtime import artifact
    from tests.conformance.dags import STEPS, random_graph
    from tests.conformance.targets import HOST

    out: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(3):
            graph, _ = random_graph(seed, seed % 2 == 0, 4, STEPS)
            artifact.save(build_program(graph, HOST, 1), Path(folder) / "m")
            out.append((Path(folder) / "m").read_bytes())
    return tuple(out)


def mutated_program(seed: int) -> bytes:
    """Raw bytes changed; or its plan, under digests that are right again."""
    rng = random.Random(seed)
    data = rng.choice(programs())
    return mutate_bytes(data, rng) if rng.random() < 0.3 else _replanned(data, rng)


def _replanned(data: bytes, rng: random.Random) -> bytes:
    from ingot.runtime import artifact

    prefix = artifact._PREFIX
    magic, version, length, _, _, *library = prefix.unpack(data[: prefix.size])
    header = json.loads(data[prefix.size : prefix.size + length])
    at, parts = prefix.size + length, {}
    for name, (size, _) in header["sections"].items():
        parts[name] = data[at : at + size]
        at += size
    nbytes, _ = header["weights"]
    weights = data[len(data) - nbytes :] if nbytes else b""
    plan = json.loads(parts["plan"])
    for _ in range(rng.choice((1, 1, 2, 4))):
        mutate_json(plan, rng)
    parts["plan"] = json.dumps(plan).encode()
    if rng.random() < 0.2:
        mutate_json(header, rng)
    sections = header.get("sections")
    if isinstance(sections, dict) and "plan" in sections:
        sections["plan"] = [len(parts["plan"]), artifact._digest(parts["plan"])]
    text = json.dumps(header).encode()
    body = prefix.size + len(text) + sum(map(len, parts.values()))
    padding = -body % artifact._PAGE
    total = body + padding + len(weights)
    first = prefix.pack(magic, version, len(text), total, hashlib.blake2b(text, digest_size=16).digest(), *library)
    return b"".join((first, text, *parts.values(), bytes(padding), weights))


def run_ingot(seed: int) -> None:
    from ingot.runtime import artifact
    from ingot.runtime.executor import CompiledModel

    path = _scratch(os.getpid()) / "m.ingot"
    path.write_bytes(mutated_program(seed))
    str(CompiledModel(artifact.load(path), threads=1))


def run_graph(seed: int) -> None:
    from tests.conformance.dags import STEPS
    from tests.conformance.more_dags import MORE
    from tests.conformance.test_dags import ISAS, agree

    agree(seed, seed % 3 > 0, 6 + seed % 20, list(ISAS)[seed % len(ISAS)], MORE if seed % 2 else STEPS)


class Fault(Exception):
    """A model that is refused though ONNX Runtime runs it, or whose results are other ones."""


def run_model(folder: Path, seed: int) -> None:
    """A file as it is, on its inputs, beside ONNX Runtime (where that lacks a kernel, PyTorch)."""
    import numpy as np

    from ingot.support.errors import ImportModelError, InputError, UnsupportedOpError

    path = folder / f"{max(seed, 0)}.onnx"
    if not path.exists():
        raise ImportModelError(f"there is no {path}")
    with np.load(path.with_suffix(".npz")) as file:
        given = {name.removeprefix("input/"): file[name] for name in file.files if name.startswith("input/")}
        results = [file[name] for name in file.files if name.startswith("output/")]
    try:
        _compare(path, given, results)
    except (InputError, UnsupportedOpError) as error:
        raise Fault(f"refused: {error}") from error


def run_onnx_graph(seed: int) -> None:
    """A random graph beside ONNX Runtime. One of open sizes may be refused."""
    from ingot.support.errors import IngotError
    from tools.onnx_graphs import random_model

    model, given = random_model(seed)
    path = _scratch(os.getpid()) / "m.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        _compare(path, given, None)
    except IngotError as error:
        if any(d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim):
            raise
        raise Fault(f"refused: {error}") from error


def _compare(path: Path, given: Mapping[str, Any], results: Sequence[Any] | None) -> None:
    """Raise Fault where a model's results are not those of ONNX Runtime without optimizations, or, where that lacks a
    kernel, `results`; without them there is nothing to compare.

    Where they are apart and float64 tells that rounding alone decides there, neither is to blame.
    """
    import numpy as np

    import ingot
    from ingot.debug.comparison.exact import exactly
    from ingot.debug.comparison.onnx_runtime import session
    from ingot.debug.comparison.tolerance import agree
    from ingot.frontends.onnx import import_onnx
    from ingot.ir.node import Input
    from ingot.support.errors import IngotError

    try:
        want = session(str(path))(given)
    except IngotError:  # it lacks many kernels of other types than f32
        if results is None:
            return
        want = results
    out = ingot.compile(path, threads=1, cache=False)(**given)
    got = out if isinstance(out, tuple) else (out,)
    apart = [i for i, (a, b) in enumerate(zip(got, want, strict=True)) if not agree(np.asarray(a), b).ok]
    if not apart:
        return
    graph = import_onnx(path)
    exact = exactly(graph, [given[n.op.label] for n in graph.inputs if isinstance(n.op, Input)])
    for i in apart:
        verdict = exact.judge(i, got[i], want[i])
        if verdict != "unsettled":
            raise Fault(f"{verdict} right: {agree(got[i], want[i])}")


def run_format(kind: str, seed: int) -> None:
    """A mutated file of another format, as its frontend reads it."""
    from ingot.support.limits import Limits, limited
    from tools.fuzz_formats import READERS, corpus, mutated

    rng = random.Random(seed)
    files = rng.choice(corpus(kind))
    (first, data), *others = files.items()
    with tempfile.TemporaryDirectory() as folder, limited(Limits(seconds=20)):
        for name, content in [*others, (first, mutated(data, partial(mutate_bytes, rng=rng)))]:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        READERS[kind][1](Path(folder) / first)


_FORMATS = ("stablehlo", "bytecode", "tensorflow", "tflite", "torchscript", "keras", "gguf", "safetensors")
CASES: dict[str, Case] = {
    "onnx": run_onnx, "ingot": run_ingot, "graphs": run_graph, "onnx-graphs": run_onnx_graph,
    **{kind: partial(run_format, kind) for kind in _FORMATS},
}  # fmt: skip


def call_onnx(seed: int) -> None:
    from ingot.frontends.onnx import import_onnx
    from tools.fuzz_calls import call

    path = _scratch(os.getpid()) / "m.onnx"
    path.write_bytes(mutated_onnx(seed))
    call(import_onnx, path, seed)


def call_ingot(seed: int) -> None:
    from tools.fuzz_calls import call_program

    path = _scratch(os.getpid()) / "m.ingot"
    path.write_bytes(mutated_program(seed))
    call_program(path, seed)


def call_format(kind: str, seed: int) -> None:
    from tools import fuzz_calls

    fuzz_calls.call_format(kind, seed)


_CALLED = ("tflite", "stablehlo", "tensorflow", "gguf", "safetensors")
CASES |= {"onnx-called": call_onnx, "ingot-called": call_ingot}
CASES |= {f"{kind}-called": partial(call_format, kind) for kind in _CALLED}


def case_of(kind: str, folder: Path = Path()) -> Case:
    """folder: where models lie."""
    return partial(run_model, folder) if kind == "models" else CASES[kind]


# --- running them


@dataclass
class Tally:
    """What came of the seeds from `first` up to, not including, `next`."""

    kind: str
    first: int
    next: int
    accepted: int = 0
    refused: int = 0
    slow: dict[str, float] = field(default_factory=dict)  # seed -> seconds of processor time
    faults: dict[str, list[int]] = field(default_factory=dict)  # where -> seeds
    killed: list[int] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @property
    def clean(self) -> bool:
        return not (self.slow or self.faults or self.killed)


def outcome(case: Case, seed: int) -> tuple[str, str, float]:
    """("accepted" | "refused" | "fault", where, seconds of processor time) of one seed."""
    from ingot.support.errors import CompileError, IngotError, VerifyError

    began = time.process_time()
    try:
        case(seed)
        what, where = "accepted", ""
    except (VerifyError, CompileError) as error:  # never the file's fault
        what, where = "fault", _where(error)
    except IngotError:
        what, where = "refused", ""
    except (Exception, RecursionError) as error:
        what, where = "fault", _where(error)
    return what, where, time.process_time() - began


def _where(error: BaseException) -> str:
    if isinstance(error, Fault):
        return str(error)[:120]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(ROOT))]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}"


def _is_called(kind: str) -> bool:
    return kind.endswith("-called")


def _limited_memory(kind: str) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    megabytes = _CALLED_MEGABYTES if _is_called(kind) else _MORE.get(kind, MEGABYTES)
    most = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


_MORE = {"keras": 4096}  # megabytes of addresses: JAX traces there, with threads of its own
_CALLED_MEGABYTES = 6144  # code and arenas of programs lie there, too

_IMPORTED = {  # kinds that run what they compile, and so start threads: only imports are prepared
    "graphs": ("ingot.targets.cpu.codegen", "tests.conformance.test_dags"),
    "onnx-graphs": ("ingot.targets.cpu.codegen", "ingot.debug.comparison.exact", "onnxruntime", "tools.onnx_graphs"),
    "models": ("ingot.targets.cpu.codegen", "ingot.frontends.onnx", "ingot.debug.comparison.exact", "onnxruntime"),
}
_IMPORTED_CALLED = ("ingot.targets.cpu.codegen", "tests.guard", "tools.fuzz_calls")


def prepare(kind: str, case: Case) -> None:
    """What every worker needs, once: imports, files to mutate. Without threads, which a fork would leave behind."""
    os.environ["INGOT_WORKERS"] = "0"
    imported = _IMPORTED_CALLED if _is_called(kind) else _IMPORTED.get(kind, ())
    for module in imported:
        importlib.import_module(module)
    if not imported:
        outcome(case, -1)
    elif _is_called(kind):
        _prepare_files(kind.removesuffix("-called"))
    gc.collect()
    gc.freeze()


def _prepare_files(kind: str) -> None:
    if kind == "onnx":
        onnx_corpus()
    elif kind == "ingot":
        programs()
    else:
        importlib.import_module("tools.fuzz_calls").models(kind)


def _work(kind: str, case: Case, seeds: range, pipe: Connection) -> None:
    if kind not in _IMPORTED:
        _limited_memory(kind)
    for seed in seeds:
        pipe.send((seed, *outcome(case, seed)))
    pipe.send(None)


def run(tally: Tally, last: int, patience: float, state: Path, folder: Path = Path()) -> None:
    """Seeds up to `last`, in worker processes, one at a time; folder: where models lie."""
    context = multiprocessing.get_context("fork")
    case = case_of(tally.kind, folder)
    prepare(tally.kind, case)
    while tally.next < last:
        ours, theirs = context.Pipe(False)
        share = range(tally.next, min(tally.next + (_SHARE_CALLED if _is_called(tally.kind) else _SHARE), last))
        worker = context.Process(target=_work, args=(tally.kind, case, share, theirs), daemon=True)
        worker.start()
        theirs.close()
        how = f"silent for {patience} s"
        try:
            while ours.poll(patience) and (message := ours.recv()) is not None:
                _count(tally, *message)
                if message[1] == "fault":
                    _append(state, tally, message[0], message[2])
                if tally.next % _SEEDS == 0:
                    tally.save(state)
        except EOFError:
            worker.join()
            how = f"ended with {worker.exitcode}"
        worker.kill()
        worker.join()
        if tally.next < share.stop:
            tally.killed.append(tally.next)
            _append(state, tally, tally.next, how)
            tally.next += 1
        tally.save(state)


def _append(state: Path, tally: Tally, seed: int, what: str) -> None:
    """A line of the findings beside the state, which are only added to."""
    with state.with_suffix(".findings").open("a") as file:
        file.write(json.dumps({"kind": tally.kind, "seed": seed, "what": what}) + "\n")


def _count(tally: Tally, seed: int, what: str, where: str, seconds: float) -> None:
    tally.next = seed + 1
    if what == "fault":
        tally.faults.setdefault(where, []).append(seed)
    else:
        tally.accepted += what == "accepted"
        tally.refused += what == "refused"
    # what is accepted takes the time that its compile needs
    if what != "accepted" and seconds > SECONDS:
        tally.slow[str(seed)] = round(seconds, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=(*CASES, "models"))
    parser.add_argument("seeds", help="FIRST:LAST")
    parser.add_argument("--state", type=Path, help="where results lie; by default fuzz-KIND.json")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds that a seed may be silent")
    parser.add_argument("--folder", type=Path, default=Path(), help="where models lie")
    parser.add_argument("--show", action="store_true", help="run the seeds in this process, and let errors through")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    if given.show:
        for seed in range(first, last):
            case_of(given.kind, given.folder)(seed)
        return 0
    state: Path = given.state or Path(f"fuzz-{given.kind}.json")
    tally = Tally(given.kind, first, first)
    if state.exists():
        tally = Tally(**json.loads(state.read_text()))
        if (tally.kind, tally.first) != (given.kind, first):
            parser.error(f"{state} holds {tally.kind} from {tally.first}: name another --state")
    run(tally, last, given.patience, state, given.folder)
    print(json.dumps(asdict(tally), indent=1))
    return 0 if tally.clean else 1


if __name__ == "__main__":
    sys.exit(main())
