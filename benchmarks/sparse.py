"""Products with sparse weights beside Ingot's own dense ones, and what the model of costs expects of them.

    python -m benchmarks.sparse [--int8] [--threads 1] [--rounds 60] [ROWSxKxN ...]

Each figure is a ratio of the least times of kernels that run by turns; the prediction stands behind it in parentheses.
`*` is what `ingot.compile` chooses among dense products (-) and blocks of 1, 4 and 16 outputs. --int8: of u8 by i8,
beside dense ones of these; `f32` is what sparse f32 products of the same zeros take, as the same ratio.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, dtype_of, f32, i32
from ingot.passes.core.sparse import keep_blocks, stored_block_count
from ingot.passes.fusion.fuse import fuse
from ingot.pipeline.cpu import KernelAssembler
from ingot.pipeline.target import features_of
from ingot.plan.link import link
from ingot.runtime.executor import CompiledModel
from ingot.schedule.cpu.contraction.compressed.sparse_plan import HEIGHTS, dense_cycles, sparse_cycles, sparse_height
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import Machine, machine_of

SHAPES = ("128x768x3072", "128x3072x768", "128x384x1536", "128x1536x384", "512x384x1536", "3136x64x256", "16x768x3072")


def pruned(n: int, k: int, height: int, zeros: float, rng: np.random.Generator) -> np.ndarray:
    """Levels of weights of which blocks of `height` outputs are zeros, at random."""
    kept = np.repeat(rng.random((-(-n // height), k)) >= zeros, height, 0)[:n]
    return (rng.integers(1, 128, (n, k)) * kept).astype(np.int8)


def product(x: Node, w: np.ndarray) -> Node:
    return ops.DotGeneral(((), ()), ((1,), (1,)), dtype=f32 if x.dtype == f32 else i32)(x, const(w))


def compiled(x: np.ndarray, w: np.ndarray, height: int, machine: Machine) -> CompiledModel:
    """height: of blocks; 0: dense."""
    node = Input("x", TensorType(dtype_of(x), x.shape))()
    graph = keep_blocks(Graph((node,), (product(node, w),)), lambda n, blocks: height)
    assembler = KernelAssembler(features_of("native"))
    program = link(fuse(graph), partial(lower, machine=machine), assembler, stages={}, meta={})
    return CompiledModel(program, threads=machine.threads)


def least(models: Sequence[tuple[CompiledModel, np.ndarray]], rounds: int) -> list[float]:
    """Seconds of each model's kernels, by turns."""
    times = [[sum(t for _, t in m.profile(x)) for m, x in models] for _ in range(rounds)]
    return [min(t) for t in zip(*times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    features = features_of("native")
    machine = machine_of(features.arch, features.features, args.threads)
    print(f"{'rows x K x N':>16} zeros" + "".join(f"{f'blocks of {h}':>{28 if args.int8 else 18}}" for h in HEIGHTS))
    for name in args.shapes:
        rows, k, n = map(int, name.split("x"))
        floats = rng.standard_normal((rows, k)).astype(np.float32)
        x, stored = (rng.integers(0, 256, (rows, k)).astype(np.uint8), np.int8) if args.int8 else (floats, np.float32)
        full = pruned(n, k, 1, 0, rng).astype(stored)
        node = product(Input("x", TensorType(dtype_of(x), (rows, k)))(), full)
        dense = compiled(x, full, 0, machine)
        expected = dense_cycles(node, machine)
        for zeros in (0.5, 0.8, 0.9, 0.95):
            weights = [pruned(n, k, h, zeros, rng).astype(stored) for h in HEIGHTS]
            kept = [(compiled(x, w, h, machine), x) for w, h in zip(weights, HEIGHTS, strict=True)]
            if args.int8:
                kept += [
                    (compiled(floats, w.astype(np.float32), h, machine), floats)
                    for w, h in zip(weights, HEIGHTS, strict=True)
                ]
            base, *times = least([(dense, x), *kept], args.rounds)
            cells = []
            for i, (h, w) in enumerate(zip(HEIGHTS, weights, strict=True)):
                chosen = sparse_height(node, lambda i, w=w: stored_block_count(w, i), machine)
                told = expected / sparse_cycles(rows, k, n, stored_block_count(w, h), h, machine, node.inputs[0].dtype)
                beside = f" f32 {base / times[i + len(HEIGHTS)]:.2f}" if args.int8 else ""
                cells.append(f"{base / times[i]:.2f} ({told:.2f}){beside} {chosen or '-'}*")
            print(f"{name:>16} {zeros:5.0%}" + "".join(f"{c:>{28 if args.int8 else 18}}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
