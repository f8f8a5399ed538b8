"""A single row through large weights, as a decoding model multiplies it: share of the bandwidth, beside PyTorch.

    python -m benchmarks.gpu.decode

Times are of the kernels, by events; eight layers of different weights, so that none lie in the second-level cache.
"""

from __future__ import annotations

import statistics

import ml_dtypes
import numpy as np
import torch

from ingot import ops
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f16
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.executor import CompiledModel

SIZE, LAYERS, BLOCK = 4096, 16, 128


def weights(bits: int, rng: np.random.Generator) -> Node:
    """[columns, depth] in f16, or in levels of `bits`."""
    if bits == 16:
        return const((rng.standard_normal((SIZE, SIZE)) / SIZE**0.5).astype(np.float16))
    shape = (SIZE, SIZE // BLOCK, BLOCK)
    kind = ml_dtypes.uint4 if bits == 4 else np.uint8
    q = rng.integers(0, 1 << bits, shape, dtype=np.uint8).astype(kind)
    middle = np.full((*shape[:2], 1), 1 << (bits - 1), np.uint8).astype(kind)
    scale = np.full((*shape[:2], 1), 2.0 / (1 << bits) / SIZE**0.5, np.float16)
    return ops.reshape(ops.Dequantize()(const(q), const(middle), const(scale)), (SIZE, SIZE))


def main() -> None:
    rng = np.random.default_rng(0)
    x = torch.randn(1, SIZE, dtype=torch.float16, device="cuda")
    dot = ops.DotGeneral(((), ()), ((1,), (1,)))
    for bits in (16, 8, 4):
        given = Input("x", TensorType(f16, (1, SIZE)))()
        y, layers = given, [weights(bits, rng) for _ in range(LAYERS)]
        for w in layers:
            y = dot(y, w)
        model = CompiledModel(build_program(Graph((given,), (y,)), features_of("cuda:sm_90a"), 1))
        model(x)
        seconds = statistics.median(sum(t for _, t in model.profile(x)) for _ in range(15)) / LAYERS
        moved = SIZE * SIZE * bits / 8
        print(f"{bits:2} bits: {seconds * 1e6:6.2f} us a layer, {moved / seconds / 1e12:.2f} TB/s", flush=True)
    kept = [torch.randn(SIZE, SIZE, dtype=torch.float16, device="cuda") for _ in range(LAYERS)]
    graph = torch.cuda.CUDAGraph()
    torch.mm(x, kept[0])
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x
        for w in kept:
            y = torch.nn.functional.linear(y, w)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken: list[float] = []
    for _ in range(15):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3 / LAYERS)
    took = statistics.median(taken)
    print(f"PyTorch in a CUDA graph, 16 bits: {took:.2f} us a layer, {SIZE * SIZE * 2 / took / 1e6:.2f} TB/s")


if __name__ == "__main__":
    main()
