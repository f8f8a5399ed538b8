"""The products of training beside cuBLAS: microseconds on the GPU, TFLOP/s, and the rate relative to cuBLAS.

    timeout 100 python -m benchmarks.gpu.products                                     # all networks, or
    timeout 100 python -m benchmarks.gpu.products --only vit-s,llama --kind forward   # some of them, or
    timeout 100 python -m benchmarks.gpu.products --only vit-s --tilings 128x256x64w8s4,128x128x64w8s4p2b0

A layer of m rows, `ins` and `outs` has three products, all of bfloat16 with float32 sums and bfloat16 results:

    forward    [m, ins] @ w             and an epilogue: a bias, GELU behind it, or a residual
    input      [m, outs] @ w^T          the gradient of the input
    weight     [m, ins]^T @ [m, outs]   the gradient of the weight, with m terms

Each is captured some times in a CUDA graph, as is cuBLAS' call; the graphs are replayed in turns and medians told. The
kernels are compiled before, in processes beside each other. A tiling is rows x columns x k-step, then warps (w), stages
(s), parts (p, 1; 0: as many as make one wave of programs, and two), whether operands are copied in boxes (b, 1) and
full waves that are not split (v, 0), and persistent programs of a multiprocessor (r, 0). Those that are given are timed
beside Ingot's choice, and the fastest is told.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.graphed import timed
from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, bf16, f32
from ingot.pipeline import tuning
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.runtime.artifact import load, save
from ingot.runtime.executor import CompiledModel
from ingot.schedule.choice import Choice, Site, Tiling, decide
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError

TARGET = "cuda:sm_90a"
PROCESSORS, MAX_PARTS = 132, 128
ROUNDS = 9
GRAPH_US = 400.0  # of a replay, about
MAX_DEVIATION = 6e-3  # of the norm, beside float32: results are rounded to 8 bits
KINDS = ("forward", "input", "weight")
_TILING = re.compile(r"(\d+)x(\d+)x(\d+)w(\d+)s(\d+)(?:p(\d+))?(?:b([01]))?(?:v(\d+))?(?:r(\d+))?")


@dataclass(frozen=True)
class Layer:
    """is_transposed: the weight is [outs, ins], as in a linear layer or a convolution, else [ins, outs]."""

    rows: int
    ins: int
    outs: int
    epilogue: str = "none"
    is_transposed: bool = True


def _linear(rows: int, *layers: tuple[int, int, str], is_transposed: bool = True) -> tuple[Layer, ...]:
    """layers: (features in, features out, epilogue)"""
    return tuple(Layer(rows, ins, outs, epilogue, is_transposed) for ins, outs, epilogue in layers)


def _pointwise(images: int, *layers: tuple[int, int, int]) -> tuple[Layer, ...]:
    """Convolutions of 1x1. layers: (height and width, channels in, channels out)"""
    return tuple(Layer(images * size * size, ins, outs) for size, ins, outs in layers)


NETWORKS = {
    "gpt2": (
        *_linear(2048, (768, 2304, "bias"), (768, 768, "residual"), (768, 3072, "gelu"), (3072, 768, "residual"),
                 is_transposed=False),
        *_linear(2048, (768, 50257, "none")),
    ),
    "bert": _linear(2048, (768, 768, "bias"), (768, 3072, "gelu"), (3072, 768, "residual"), (768, 30522, "bias")),
    "vit-s": _linear(6304, (384, 1152, "bias"), (384, 384, "residual"), (384, 1536, "gelu"), (1536, 384, "residual")),
    "llama": _linear(
        4096, (768, 768, "none"), (768, 256, "none"), (768, 2048, "none"), (2048, 768, "residual"),
        (768, 32000, "none"),
    ),
    "resnet50": _pointwise(
        32, (56, 64, 64), (56, 64, 256), (56, 256, 64), (56, 256, 128), (28, 128, 512), (28, 512, 128), (28, 512, 256),
        (14, 256, 1024), (14, 1024, 256), (14, 1024, 512), (7, 512, 2048), (7, 2048, 512), (28, 256, 512),
        (14, 512, 1024), (7, 1024, 2048),
    ),
    "resnet18": _pointwise(128, (28, 64, 128), (14, 128, 256), (7, 256, 512)),
    "efficientnet-b0": _pointwise(
        32, (112, 32, 16), (112, 16, 96), (56, 96, 24), (56, 24, 144), (28, 40, 240), (14, 480, 112), (14, 112, 672),
        (7, 192, 1152), (7, 1152, 192), (7, 320, 1280),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Product:
    """x [rows, terms] times y [terms, columns], either of which may be stored transposed, and its epilogue."""

    rows: int
    columns: int
    terms: int
    is_x_transposed: bool = False
    is_y_transposed: bool = False
    epilogue: str = "none"

    def __str__(self) -> str:
        layout = f"{'nt'[self.is_x_transposed]}{'nt'[self.is_y_transposed]}"
        return f"{self.rows}x{self.columns}x{self.terms} {layout} {self.epilogue}"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the operands in memory: x, y, and what the epilogue reads."""
        m, n, d = self.rows, self.columns, self.terms
        x, y = (d, m) if self.is_x_transposed else (m, d), (n, d) if self.is_y_transposed else (d, n)
        extra: dict[str, list[tuple[int, ...]]] = {"bias": [(n,)], "gelu": [(n,)], "residual": [(m, n)]}
        return [x, y, *extra.get(self.epilogue, [])]

    def graph(self) -> Graph:
        inputs = tuple(Input(f"in{i}", TensorType(bf16, s))() for i, s in enumerate(self.shapes))
        x, y, *extra = inputs
        z = ops.DotGeneral(((), ()), ((int(not self.is_x_transposed),), (int(self.is_y_transposed),)), dtype=f32)(x, y)
        for other in extra:
            z = ops.add(z, ops.cast(other, f32))
        z = ops.cast(z, bf16)
        return Graph(inputs, (ops.Gelu("tanh")(z) if self.epilogue == "gelu" else z,))

    def cublas(self, x: Tensor, y: Tensor, *extra: Tensor) -> Tensor:
        x, y = x.t() if self.is_x_transposed else x, y.t() if self.is_y_transposed else y
        if self.epilogue == "gelu":
            return torch.ops.aten._addmm_activation(extra[0], x, y, use_gelu=True)
        return torch.addmm(extra[0], x, y) if extra else x @ y

    def exact(self, *operands: Tensor) -> Tensor:
        x, y, *extra = (t.float() for t in operands)
        z = (x.t() if self.is_x_transposed else x) @ (y.t() if self.is_y_transposed else y)
        z = z + extra[0] if extra else z
        return torch.nn.functional.gelu(z, approximate="tanh") if self.epilogue == "gelu" else z


def products(layer: Layer) -> dict[str, Product]:
    m, ins, outs, turned = layer.rows, layer.ins, layer.outs, layer.is_transposed
    x_by_g, g_by_x = Product(ins, outs, m, True), Product(outs, ins, m, True)
    return {
        "forward": Product(m, outs, ins, False, turned, layer.epilogue),
        "input": Product(m, ins, outs, False, not turned),
        "weight": g_by_x if turned else x_by_g,
    }


def parse_tiling(text: str) -> Tiling:
    found = _TILING.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no tiling such as 128x256x64w8s4p1b1v0")
    rows, columns, depth, warps, stages, parts, boxes = (int(n) for n in found.groups("1")[:7])
    return Tiling(rows, columns, depth, warps, stages, parts, boxes, int(found[8] or 0), int(found[9] or 0))


def tiling_text(t: Choice) -> str:
    if not isinstance(t, Tiling):
        return str(t)
    return f"{t.rows}x{t.columns}x{t.depth}w{t.warps}s{t.stages}p{t.parts}b{t.boxes}v{t.waves}r{t.persistent}"


def in_parts(t: Tiling, product: Product) -> list[Tiling]:
    """A tiling of 0 parts with as many as make a wave of programs and two of them."""
    tiles = -(-product.rows // t.rows) * -(-product.columns // t.columns)
    return [t] if t.parts else [replace(t, parts=max(1, min(n * PROCESSORS // tiles, MAX_PARTS))) for n in (1, 2)]


@dataclass(frozen=True)
class Built:
    """A program in a file. choice: of its product. failure: why there is none."""

    choice: str
    path: Path | None
    failure: str = ""


def build(product: Product, tilings: Sequence[Tiling], folder: Path) -> list[Built]:
    """What Ingot makes of a product by its own choice, then with each of `tilings` that is one for it."""
    features = features_of(TARGET)
    path, trace = Path(tempfile.mkdtemp(dir=folder)), Trace()

    def built(name: str) -> Path:
        save(build_program(product.graph(), features, 1, trace=trace), path / name, durable=False)
        return path / name

    own = built("own")
    site = next(launch.site for launch in trace.launches if launch.site is not None)
    found = [Built(tiling_text(decide(site, tuning.measured(features, 1))), own)]
    candidates = dict.fromkeys(t for tiling in tilings for t in in_parts(tiling, product))
    for number, tiling in enumerate(filter(site.admits, candidates)):
        try:
            found.append(Built(tiling_text(tiling), _forced(site, tiling, path / f"{number}.jsonl", features, built)))
        except IngotError as e:
            found.append(Built(tiling_text(tiling), None, str(e).splitlines()[0]))
    return found


def _forced(site: Site, choice: Choice, database: Path, features: Any, built: Callable[[str], Path]) -> Path:
    entry = tuning.Entry(tuning.machine_name(features, 1), site.key, choice, site.untuned, 1.0, 2.0)
    tuning.add(database, [entry])
    os.environ["INGOT_TUNING"] = str(database)
    try:
        return built(database.stem)
    finally:
        del os.environ["INGOT_TUNING"]


def measure(product: Product, found: Sequence[Built]) -> Iterator[tuple[str, float, float, float]]:
    """For each program: its choice, microseconds of it and of cuBLAS, and its deviation from float32."""
    torch.manual_seed(0)
    operands = [torch.randn(s, device="cuda").to(torch.bfloat16) for s in product.shapes]
    models = [CompiledModel(load(b.path)) for b in found if b.path is not None]
    want = product.exact(*operands)
    deviations = [float((m(*operands).float() - want).norm() / want.norm()) for m in models]
    del want
    flops = 2.0 * product.rows * product.columns * product.terms
    count = max(3, min(40, round(GRAPH_US / (4 + flops / 400e6))))
    calls = [timed(lambda m=m: m(*operands), count) for m in models]  # type: ignore[misc]
    calls.append(timed(lambda: product.cublas(*operands), count))
    for call in calls:
        call()
    medians = [statistics.median(t) for t in zip(*([call() for call in calls] for _ in range(ROUNDS)), strict=True)]
    names = [b.choice for b in found if b.path is not None]
    for name, us, deviation in zip(names, medians, deviations, strict=False):
        yield name, us, medians[-1], deviation


def mean(ratios: Sequence[float]) -> str:
    """The geometric mean."""
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}" if ratios else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks, by commas")
    parser.add_argument("--kind", default=",".join(KINDS), help="kinds of products, by commas")
    parser.add_argument("--tilings", type=lambda text: [parse_tiling(t) for t in text.split(",")], default=[])
    parser.add_argument("--seconds", type=float, default=90.0, help="in all; products that come later are left out")
    parser.add_argument("--file", type=Path, help="to which the times of all tilings are written")
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    wanted: dict[Product, list[tuple[str, str]]] = defaultdict(list)  # the networks and kinds that have it
    for network in asked.only.split(","):
        for layer in NETWORKS[network]:
            for kind, product in products(layer).items():
                if kind in asked.kind.split(","):
                    wanted[product].append((network, kind))
    cores = os.cpu_count() or 1
    os.environ["INGOT_WORKERS"] = "1"
    ratios: dict[str, list[float]] = defaultdict(list)
    late = wrong = 0
    log = open(asked.file, "w") if asked.file else None  # noqa: SIM115
    print("rows x columns x terms, layout, epilogue | us | TFLOP/s | cuBLAS us | cuBLAS over Ingot | tiling")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool,
    ):
        jobs = {p: pool.submit(build, p, asked.tilings, Path(folder)) for p in wanted}
        done, _ = wait(jobs.values(), 0.6 * asked.seconds)  # nothing is timed while something is compiled
        print(f"{len(done)} of {len(jobs)} compiled, {end - time.monotonic():.0f} s are left", flush=True)
        for product, job in jobs.items():
            if time.monotonic() > end or not job.done():
                late += 1
                continue
            if (error := job.exception()) is not None:
                wrong += 1
                print(f"{product}: {error}")
                continue
            results = job.result()
            for failed in (b for b in results if b.failure):
                print(f"{product} | {failed.choice}: {failed.failure}")
            told = list(measure(product, results))
            flops = 2e-6 * product.rows * product.columns * product.terms
            for choice, us, other, deviation in told:
                if not deviation < MAX_DEVIATION:
                    wrong += 1
                    print(f"{product} | {choice} WRONG by {deviation:.1e}")
                if log is not None:
                    print(
                        f"{product} | {choice} | {us:.2f} | {flops / us:.0f} | {other / us:.3f}", file=log, flush=True
                    )
            choice, us, other, _ = told[0]
            line = f"{product} | {us:.1f} | {flops / us:.0f} | {other:.1f} | {other / us:.2f} | {choice}"
            for network, kind in wanted[product]:
                for key in (network, kind, f"{network} {kind}", "all"):
                    ratios[key].append(other / us)
            if asked.tilings:
                best, choice = min((us, choice) for choice, us, *_ in told)
                line += f" | {best:.1f} | {other / best:.2f} | {choice}"
                ratios["all, the fastest tilings"].append(other / best)
            print(line, flush=True)
        pool.shutdown(wait=False, cancel_futures=True)
    for name, found in ratios.items():
        print(
            f"{name}: {mean(found)} of cuBLAS in the geometric mean of {len(found)}, {min(found):.2f}-{max(found):.2f}"
        )
    print(f"{late} left out, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
