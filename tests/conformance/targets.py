"""The targets that the conformance suite runs on: a new one is an entry of `TARGETS`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ingot.ir.node import Graph, Op
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.cuda.device import DEVICE
from ingot.runtime.executor import CompiledModel
from ingot.support.native import Features
from ingot.targets.cpu.workers import host_features
from ingot.targets.cuda.narrow import NARROW_FORMATS
from ingot.targets.cuda.triton import TYPES, print_kernel
from tests.conformance.c import run_c
from tests.conformance.checked import planned, run_checked
from tests.conformance.emulated import RISCV, missing, run_emulated
from tests.conformance.samples import OPS, Arrays, Sample, combine, split_results
from tests.conformance.wasm import NODE, run_wasm

THREADS = 2
HOST = host_features()
_SSE = ("sse3", "sse4.1", "sse4.2", "ssse3", "popcnt", "cx16")
_AVX2 = (*_SSE, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
# this machine, and as an older one: schedules for machines without mask registers are others
ISAS = {"native": HOST}
if "avx512f" in HOST.features:
    ISAS["avx2"] = Features(HOST.arch, _AVX2, "haswell")
# whole algorithms, of a hundred kernels and more each: the fast set has one sample of them, with sizes as numbers
LONG = frozenset({"attention_gradients", "eig", "eigh", "householder_qr", "lu", "svd"})
# one of each kind of kernel
QUICK = frozenset({"add", "divide", "exponential", "dot_general", "softmax", "sort", "scatter", "while", "case"})
_NARROW = ("i4", "u4", "i2", "u2", "f8e5m2", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0fnu", "f4e2m1fn")
_EMULATED_ONCE = {c.name for c in OPS} - QUICK - {"sine", "convolution", "conv", "quantized_conv", "matmul"}
H100 = "cuda:sm_90a"
# programs of several devices: see tests/ops/core/test_collective.py, tests/runtime/ranks
COLLECTIVES: dict[str, str] = dict.fromkeys(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"), "an exchange is no kernel"
)


@dataclass(frozen=True)
class Runner:
    """A target under test. run: the results of each sample; the folder is for files.

    absent: why it cannot be run here, if so. skipped: ops without kernels there, and why. missing: element types that
    it has none of, and why. fixed: why sizes are not made symbolic, if so. max_elements: of a sample's operands.
    quick: samples of an op in the fast set, of `QUICK` and of others. slow: samples in the slow set; None: all.
    """

    run: Callable[[Sequence[Sample], Path], list[Arrays]]
    absent: str = ""
    skipped: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    fixed: str = ""
    max_elements: int | None = None
    quick: tuple[int, int] = (4, 4)
    slow: int | None = None

    def supports(self, sample: Sample) -> bool:
        if self.max_elements is not None and sum(x.size for x in sample.inputs) > self.max_elements:
            return False
        types = sample.op.infer(*sample.types)
        results = types if isinstance(types, tuple) else (types,)
        return not any(t.dtype.name in self.missing for t in (*sample.types, *results))

    def why_not(self, cls: type[Op]) -> str:
        return self.absent or self.skipped.get(cls.name, "")


def _compiled(features: Features, samples: Sequence[Sample], folder: Path) -> list[Arrays]:
    combined = combine(samples)
    got = CompiledModel(build_program(combined.graph, features, THREADS), threads=THREADS)(*combined.arrays)
    return split_results(combined, got if isinstance(got, tuple) else (got,))


def _printed_c(vectors: str, samples: Sequence[Sample], folder: Path) -> list[Arrays]:
    combined = combine(samples)
    return split_results(combined, run_c(combined.graph, combined.arrays, folder, vectors))


def _in_node(samples: Sequence[Sample], folder: Path) -> list[Arrays]:
    combined = combine(samples)
    return split_results(combined, run_wasm(combined.graph, combined.arrays, folder))


def _emulated(target: str, cpu: str, samples: Sequence[Sample], folder: Path) -> list[Arrays]:
    combined = combine(samples)
    return split_results(combined, run_emulated(combined.graph, combined.arrays, folder, features_of(target), cpu))


def _interpreted(
    target: str, printed: Callable[[Graph], None], samples: Sequence[Sample], folder: Path
) -> list[Arrays]:
    """By the meaning of its kernels; one after another, as the interpreter is slow."""
    results: list[Arrays] = []
    for s in samples:
        one = combine([s])
        results += split_results(one, run_checked(one.graph, one.arrays, target))
        printed(one.graph)
    return results


def _as_triton(graph: Graph) -> None:
    _, kernels = planned(graph, H100)
    assert all(print_kernel(kernel).text.startswith("@triton.jit") for kernel in kernels.values())


def _no_gpu() -> str:
    refused = DEVICE.refusal(features_of(H100))
    return "" if refused is None else str(refused)


NO_TILES = {name: "Triton has no such type" for name in _NARROW if name not in {d.name for d in NARROW_FORMATS}}
assert not set(NO_TILES) & {d.name for d in TYPES}

TARGETS: dict[str, Runner] = {
    "cpu": Runner(partial(_compiled, HOST), quick=(6, 1)),
    **{f"cpu:{isa}": Runner(partial(_compiled, ISAS[isa]), quick=(0, 0)) for isa in ISAS if isa != "native"},
    **{
        name: Runner(
            partial(_printed_c, vectors), absent="" if shutil.which("gcc") else "no gcc", quick=(quick, 0), slow=slow,
            missing={t: "C has no such type" for t in _NARROW}, fixed="C is written for fixed sizes",
            skipped={"random_key": "its seed is state, which a graph of one op does not name"} | COLLECTIVES,
        )
        for name, vectors, quick, slow in (("c", "", 4, 4), ("c:vector16", "vector16", 0, 2))
    },
    **{
        f"{target}@{name}": Runner(
            partial(_emulated, target, cpu), absent=missing(features_of(target).arch), quick=(quick, 0), slow=1,
            skipped=COLLECTIVES | ({} if quick else dict.fromkeys(_EMULATED_ONCE, "another emulator runs it")),
        )
        for target, name, cpu, quick in (
            ("cpu:riscv64", "vlen128", RISCV.format(128), 1),
            ("cpu:riscv64", "vlen256", RISCV.format(256), 0),
            ("cpu:riscv64", "vlen512", RISCV.format(512), 0),
            ("cpu:riscv64-zvl256b", "vlen256", RISCV.format(256), 0),
            ("cpu:riscv64-zvl512b", "vlen512", RISCV.format(512), 0),
            ("cpu:aarch64", "cortex-a72", "cortex-a72", 0),
            ("cpu:neoverse-v2", "max", "max", 1),
        )
    },
    "wasm": Runner(_in_node, absent="" if NODE else "no node", quick=(4, 0), skipped=COLLECTIVES),
    "cuda": Runner(
        partial(_compiled, features_of(H100)), absent=_no_gpu(), slow=16, missing=NO_TILES,
        fixed="to be tried on a GPU",
    ),
    "null:cuda": Runner(
        partial(_interpreted, H100, _as_triton), quick=(1, 1), slow=16, max_elements=5000, missing=NO_TILES,
        skipped=COLLECTIVES,
        fixed="the kernel interpreter takes too long for more",
    ),
    "null:neon": Runner(
        partial(_interpreted, "cpu:neoverse-n1", lambda graph: None), quick=(1, 0), slow=1, max_elements=500,
        skipped={"sort": "lanes without a row are sorted as they are; the interpreter refuses what was never written"}
        | COLLECTIVES,
        fixed="the kernel interpreter takes too long for more",
    ),
}  # fmt: skip
