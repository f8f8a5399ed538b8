"""Products with sparse weights beside Ingot's own dense ones, and what the model of costs expects of them.

    python -m benchmarks.sparse [--threads 1] [--rounds 60] [ROWSxKxN ...]

Each figure is a ratio of the least times of kernels that run by turns; the prediction stands behind it in parentheses.
`*` is what `ingot.compile` chooses among dense products (-) and blocks of 1, 4 and 16 outputs.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32
from ingot.passes.core.sparse import keep_blocks, kept_blocks
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
    """Weights of which blocks of `height` outputs are zeros, at random."""
    kept = np.repeat(rng.random((-(-n // height), k)) >= zeros, height, 0)[:n]
    return (rng.standard_normal((n, k)) * kept).astype(np.float32)


def product(x: Node, w: np.ndarray) -> Node:
    return ops.DotGeneral(((), ()), ((1,), (1,)))(x, const(w))


def compiled(rows: int, w: np.ndarray, height: int, machine: Machine) -> CompiledModel:
    """height: of blocks; 0: dense."""
    x = Input("x", TensorType(f32, (rows, w.shape[1])))()
    graph = keep_blocks(Graph((x,), (product(x, w),)), lambda n, blocks: height)
    assembler = KernelAssembler(features_of("native"))
    program = link(fuse(graph), partial(lower, machine=machine), assembler, stages={}, meta={})
    return CompiledModel(program, threads=machine.threads)


def least(models: list[CompiledModel], x: np.ndarray, rounds: int) -> list[float]:
    """Seconds of each model's kernels, by turns."""
    times = [[sum(t for _, t in m.profile(x)) for m in models] for _ in range(rounds)]
    return [min(t) for t in zip(*times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    features = features_of("native")
    machine = machine_of(features.arch, features.features, args.threads)
    print(f"{'rows x K x N':>16} zeros" + "".join(f"{f'blocks of {h}':>18}" for h in HEIGHTS))
    for name in args.shapes:
        rows, k, n = map(int, name.split("x"))
        x = rng.standard_normal((rows, k)).astype(np.float32)
        node = product(Input("x", TensorType(f32, (rows, k)))(), pruned(n, k, 1, 0, rng))
        dense = compiled(rows, pruned(n, k, 1, 0, rng), 0, machine)
        expected = dense_cycles(node, machine)
        for zeros in (0.5, 0.8, 0.9, 0.95):
            weights = [pruned(n, k, h, zeros, rng) for h in HEIGHTS]
            blocks = [int(kept_blocks(w, h).sum()) for w, h in zip(weights, HEIGHTS, strict=True)]
            kept = [compiled(rows, w, h, machine) for w, h in zip(weights, HEIGHTS, strict=True)]
            base, *times = least([dense, *kept], x, args.rounds)
            cells = []
            for h, w, count, t in zip(HEIGHTS, weights, blocks, times, strict=True):
                chosen = sparse_height(node, lambda i, w=w: int(kept_blocks(w, i).sum()), machine)
                told = expected / sparse_cycles(rows, k, n, int(count), h, machine)
                cells.append(f"{base / t:.2f} ({told:.2f}) {chosen or '-'}*")
            print(f"{name:>16} {zeros:5.0%}" + "".join(f"{c:>18}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
