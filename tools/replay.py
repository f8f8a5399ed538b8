"""Process replay: what the compiler makes of samples of all ops and of some models, recorded, then compared.

    python tools/replay.py record                  # on the commit that is right
    python tools/replay.py check                   # after the change: what is no longer byte-identical, with diffs
    python tools/replay.py check --sample 8        # every eighth case; --only op/conv and --isa avx2 narrow it too

Recorded are, per case and per ISA (AVX2, AVX-512, NEON): the fused graph, the plan with a digest of the weights, each
kernel in kernel IR and in LLVM IR, and with `--code` its machine code. Texts lie in a folder (--store) by their digest,
each once; so do the digests of the code that LLVM made of a text, so that code is only made for new texts. Without
`--code` equal LLVM IR stands for equal code. Nothing is run, so every ISA can be recorded on any machine.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from ingot.ir.dims import likely_sizes  # noqa: E402
from ingot.ir.kernel import Kernel  # noqa: E402
from ingot.ir.kernel.show import show_kernel  # noqa: E402
from ingot.ir.node import Graph, Op  # noqa: E402
from ingot.ir.show import show  # noqa: E402
from ingot.pipeline.build import optimize, size_hints  # noqa: E402
from ingot.pipeline.target import Options, target_of  # noqa: E402
from ingot.plan.link import link  # noqa: E402
from ingot.runtime.plan_json import to_json  # noqa: E402
from ingot.runtime.program import Program  # noqa: E402
from ingot.support.native import Code, Features  # noqa: E402
from ingot.targets.cpu import codegen  # noqa: E402
from ingot.targets.cpu.printer.llvm import print_module  # noqa: E402

_SSE = ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
_AVX2 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", *_SSE)
_NUMBERS = ("bf16", "bitalg", "bw", "cd", "dq", "f", "ifma", "vbmi", "vbmi2", "vl", "vnni", "vpopcntdq")
_AVX512 = (*_AVX2, *(f"avx512{name}" for name in _NUMBERS), "gfni")
ISAS = {
    "avx2": Features("x86_64", tuple(sorted(_AVX2)), "haswell"),
    "avx512": Features("x86_64", tuple(sorted(_AVX512)), "znver4"),
    "neon": Features("aarch64", ("dotprod", "fp-armv8", "lse", "neon", "rdm"), "neoverse-n1"),
}
THREADS = 2
ZOO = ("resnet50", "mobilenetv3_large_100", "densenet121", "minilm", "gpt2", "lstm", "unet")


@dataclass(frozen=True)
class Case:
    """A graph of MODEL ops; made where it is compiled, as graphs do not travel between processes."""

    name: str
    make: Callable[[], Graph | None]
    precision: str = "float32"


def cases(most: int) -> list[Case]:
    return [*_op_cases(most), *_model_cases()]


def _op_cases(most: int) -> Iterator[Case]:
    from tests.conformance.samples import OPS

    for cls in OPS:
        yield Case(f"op/{cls.name}", partial(_samples, cls, most, False))
        yield Case(f"op/{cls.name}/dynamic", partial(_samples, cls, most, True))


def _samples(cls: type[Op], most: int, dynamic: bool) -> Graph | None:
    """At most so many samples of an op as subgraphs of one graph, as the conformance suite has them."""
    from tests.conformance.samples import combine, static, symbolic

    samples = symbolic(list(cls.samples())) if dynamic else static(cls)
    return combine(samples[:: -(-len(samples) // most)]).graph if samples else None


def _model_cases() -> Iterator[Case]:
    from tests.models.nets import FAMILIES

    for name in FAMILIES:
        yield Case(f"model/{name}", partial(_family, name, True))
        yield Case(f"model/{name}/static", partial(_family, name, False))
    yield Case("model/digits", _digits)
    yield Case("model/bert/bfloat16", partial(_family, "bert", True), "bfloat16")
    yield Case("model/resnet/bfloat16", partial(_family, "resnet", False), "bfloat16")
    for name in ZOO:
        yield Case(f"zoo/{name}", partial(_zoo, name))


def _family(name: str, dynamic: bool) -> Graph:
    from ingot.frontends.torch import export_module, import_exported
    from tests.models.nets import FAMILIES, build_net

    family = FAMILIES[name]
    example = family.inputs(2 if dynamic else 1, family.lengths[0])
    return import_exported(export_module(build_net(name), example, family.axes if dynamic else None)).graph


def _digits() -> Graph:
    import numpy as np

    from examples import digits
    from ingot.frontends.onnx import import_onnx

    return import_onnx(digits.to_onnx(digits.initial(np.random.default_rng(0))))


def _zoo(name: str) -> Graph:
    from benchmarks import zoo
    from ingot.frontends.torch import export_module, import_exported

    model = zoo.get(name)
    return import_exported(export_module(model.to_torch(), model.inputs())).graph


@dataclass
class Store:
    """Texts by their digest, and the digests of what LLVM made of them."""

    folder: Path

    def put(self, text: str) -> str:
        digest = _digest(text.encode())
        path = self.folder / "texts" / digest[:2] / digest
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(zlib.compress(text.encode(), 1))
            temporary.rename(path)
        return digest

    def get(self, digest: str) -> str:
        return zlib.decompress((self.folder / "texts" / digest[:2] / digest).read_bytes()).decode()

    def code(self, text: str, isa: Features) -> str:
        """The digest of the machine code of a module; made once per text, ISA and state of the code generator."""
        key = _digest(f"{_generator()} {isa} {text}".encode())
        path = self.folder / "code" / key[:2] / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_digest(codegen.emit(text, isa)))
        return path.read_text()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


@cache
def _generator() -> str:
    return _digest(Path(codegen.__file__).read_bytes())


@dataclass
class Recorder:
    """An assembler that keeps what it is given: name of a kernel -> (kernel IR, LLVM IR, machine code), by digest."""

    store: Store
    isa: Features
    code: bool
    kernels: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def add(self, kernel: Kernel) -> None:
        text = print_module([kernel], self.isa)
        machine = self.store.code(text, self.isa) if self.code else ""
        self.kernels[kernel.name] = self.store.put(show_kernel(kernel)), self.store.put(text), machine

    def finish(self) -> Code:
        return Code(self.isa, b"", dict.fromkeys(self.kernels, 0))


@dataclass(frozen=True)
class Record:
    """What one case became on one ISA: part ("graph", "plan", "kernel NAME") -> digests."""

    case: str
    isa: str
    parts: dict[str, tuple[str, ...]]
    seconds: float


def _compile(graph: Graph, case: Case, recorder: Recorder) -> Program:
    isa = recorder.isa
    with likely_sizes(size_hints(graph)):
        target = target_of(isa)
        fused = optimize(graph, target.passes(isa, Options(THREADS, precision=case.precision)))
        lower = partial(target.lower, machine=target.machine(isa, THREADS, {}))
        return link(fused, lower, recorder, stages={"fused": show(fused)}, meta={})


def _record(name: str, most: int, isas: tuple[str, ...], folder: Path, code: bool) -> list[Record]:
    store = Store(folder)
    case = next(c for c in cases(most) if c.name == name)
    graph = case.make()
    records: list[Record] = []
    for isa in isas if graph is not None else ():
        begin = time.perf_counter()
        recorder = Recorder(store, ISAS[isa], code)
        assert graph is not None
        try:
            program = _compile(graph, case, recorder)
        except Exception as error:  # a refusal is a result as well
            parts: dict[str, tuple[str, ...]] = {"error": (store.put(f"{type(error).__name__}: {error}"),)}
        else:
            plan = json.dumps(to_json(program), indent=1) + "\nweights " + _digest(program.weights.tobytes())
            parts = {"graph": (store.put(program.stages["fused"]),), "plan": (store.put(plan),)}
            parts |= {f"kernel {k}": v for k, v in recorder.kernels.items()}
        records.append(Record(name, isa, parts, time.perf_counter() - begin))
    return records


def _worker(task: tuple[str, int, tuple[str, ...], Path, bool]) -> list[Record]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return _record(*task)


def _run(arguments: argparse.Namespace) -> dict[str, dict[str, tuple[str, ...]]]:
    names = [c.name for c in cases(arguments.most) if arguments.only in c.name][:: arguments.sample]
    # the long ones first
    names.sort(key=lambda n: (not n.startswith("zoo"), not n.startswith("model")))
    tasks = [(n, arguments.most, tuple(arguments.isa), arguments.store, arguments.code) for n in names]
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    begin = time.perf_counter()
    with ExitStack() as stack:
        results = map(_worker, tasks)
        if arguments.jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(arguments.jobs))
            results = pool.imap_unordered(_worker, tasks)
        for i, records in enumerate(results):
            for r in records:
                found[f"{r.case} {r.isa}"] = r.parts
                if r.seconds > 20:
                    print(f"  {r.case} {r.isa}: {r.seconds:.0f} s", file=sys.stderr)
            if i % 50 == 49:
                print(f"  {i + 1} of {len(tasks)}, {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return found


def record(arguments: argparse.Namespace) -> int:
    index = arguments.store / "index.json"
    known = json.loads(index.read_text()) if index.exists() and (arguments.only or arguments.sample > 1) else {}
    found = _run(arguments)
    arguments.store.mkdir(parents=True, exist_ok=True)
    index.write_text(json.dumps(known | found))
    kernels = sum(1 for parts in found.values() for p in parts if p.startswith("kernel"))
    print(f"recorded {len(found)} programs, {kernels} kernels in {index}")
    return 0


_FORMS = ("kernel IR", "LLVM IR", "machine code")


def check(arguments: argparse.Namespace) -> int:
    """Say what differs from the record; 1 where anything does."""
    index = arguments.store / "index.json"
    if not index.exists():
        raise SystemExit(f"no record at {index}: run `python tools/replay.py record` on the commit that is right")
    before = json.loads(index.read_text())
    after = _run(arguments)
    store = Store(arguments.store)
    changed, shown, kernels = 0, 0, 0
    for name in sorted(after):
        new, old = after[name], {k: tuple(v) for k, v in before.get(name, {}).items()}
        kernels += len(new)
        wrong = [p for p in sorted(new.keys() | old.keys()) if not _same(new.get(p, ()), old.get(p, ()))]
        if not wrong:
            continue
        changed += 1
        what = "is new" if not old else f"differs in {len(wrong)} of {len(new)} parts: {', '.join(wrong[:5])}"
        print(f"{name} {what}")
        for part in wrong if old else ():
            if shown < arguments.diffs and part in new and part in old:
                shown += _show_difference(store, part, old[part], new[part])
    outcome = f"{changed} differ" if changed else "all byte-identical"
    print(f"{len(after)} programs of {kernels} parts: {outcome}")
    return 1 if changed else 0


def _same(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Digests agree; machine code only where both have it."""
    return len(a) == len(b) and all(x == y or not (x and y) for x, y in zip(a, b, strict=True))


def _show_difference(store: Store, part: str, old: tuple[str, ...], new: tuple[str, ...]) -> int:
    for form, a, b in zip(_FORMS, old, new, strict=False):
        if a == b or form == "machine code":
            continue
        before, after = (store.get(d).splitlines() for d in (a, b))
        lines = difflib.unified_diff(before, after, f"{part} before", f"{part} after", lineterm="", n=1)
        print("\n".join(f"    {line[:200]}" for line, _ in zip(lines, range(24), strict=False)))
        return 1
    return 0


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["record", "check"])
    parser.add_argument("--store", type=Path, default=ROOT / "build" / "replay", help="the folder of the record")
    parser.add_argument("--only", default="", help="cases whose name has this in it: op/, model/, zoo/, conv")
    parser.add_argument("--sample", type=int, default=1, help="every n-th case")
    parser.add_argument("--most", type=int, default=8, help="samples of an op, static and dynamic ones each")
    parser.add_argument("--isa", nargs="+", choices=ISAS, default=list(ISAS))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--diffs", type=int, default=3, help="differences to show")
    parser.add_argument("--code", action="store_true", help="record machine code as well")
    arguments = parser.parse_args(given)
    return {"record": record, "check": check}[arguments.do](arguments)


if __name__ == "__main__":
    raise SystemExit(main())
