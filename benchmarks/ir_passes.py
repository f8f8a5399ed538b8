"""What the IR costs: microseconds per node for building, verifying, printing, parsing, and each pass.

    python benchmarks/ir_passes.py [--layers 24]

The budget is 10 us of CPU time per node per pass. The graph is a stack of pre-norm transformer blocks as a frontend
makes it, lowered to CORE (about 1,500 nodes at 24 layers), on which most rules find nothing: the cost of looking.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.ir import verify as verify_module
from ingot.ir.array import Array
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.parse import parse
from ingot.ir.rewrite import rewrite
from ingot.ir.show import show
from ingot.ir.types import TensorType, f32
from ingot.passes.core.dce import dce
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.identities import IDENTITIES, rule_set
from ingot.passes.core.simplify import simplify
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.lower import lower_model_ops

BUDGET = 10.0


def weight(*shape: int) -> Node:
    return const(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def block(x: Node, width: int, heads: int) -> Node:
    batch, seq = x.shape[0], x.shape[1]

    def linear(v: Node, out: int) -> Node:
        return ops.add(ops.MatMul()(v, weight(v.shape[-1], out)), weight(out))  # type: ignore[arg-type]

    def split(v: Node) -> Node:
        return ops.transpose(ops.reshape(v, (batch, seq, heads, width // heads)), (0, 2, 1, 3))

    normed = ops.LayerNorm((2,), 1e-5)(x, weight(width), weight(width))
    q, k, v = (split(linear(normed, width)) for _ in range(3))
    scores = ops.div(ops.MatMul()(q, ops.transpose(k, (0, 1, 3, 2))), (width // heads) ** 0.5)
    mixed = ops.MatMul()(ops.Softmax(3)(scores), v)
    x = ops.add(x, linear(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (batch, seq, width)), width))
    normed = ops.LayerNorm((2,), 1e-5)(x, weight(width), weight(width))
    return ops.add(x, linear(ops.Gelu("none")(linear(normed, 4 * width)), width))


def model(layers: int) -> Graph:
    x = Input("x", TensorType(f32, (symbol("batch"), symbol("seq"), 32)))()
    y = x
    for _ in range(layers):
        y = block(y, 32, 4)
    return Graph((x,), (y,), ("y",))


def median_us(fn: Callable[[], object], nodes: int, repeats: int) -> float:
    times: list[float] = []
    gc.collect()
    for _ in range(repeats):
        start = time.thread_time()
        fn()
        times.append(time.thread_time() - start)
    return statistics.median(times) / nodes * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()

    start = time.thread_time()
    source = model(given.layers)
    built = (time.thread_time() - start) / len(source.nodes()) * 1e6
    core = lower_model_ops(source)
    tidy = fold_constants(simplify(core))
    n, m = len(core.nodes()), len(tidy.nodes())
    table: list[Array] = []
    text = show(tidy, table=table)
    identities = rule_set(IDENTITIES)

    def reverify() -> None:
        verify_module._verified.clear()
        verify_module.verify(tidy)

    rows: list[tuple[str, float, bool]] = [
        (f"build the model ({len(source.nodes())} nodes)", built, False),
        (f"lower_model_ops (to {n} nodes)", median_us(lambda: lower_model_ops(source), n, given.repeats), True),
        ("simplify, first time", median_us(lambda: simplify(core), n, given.repeats), True),
        (f"simplify, nothing to do ({m} nodes)", median_us(lambda: simplify(tidy), m, given.repeats), True),
        ("identities alone", median_us(lambda: rewrite(tidy, identities), m, given.repeats), True),
        ("fold_constants", median_us(lambda: fold_constants(tidy), m, given.repeats), True),
        ("fold_batch_norm", median_us(lambda: fold_batch_norm(tidy), m, given.repeats), True),
        ("dce", median_us(lambda: dce(tidy), m, given.repeats), True),
        ("verify, every node", median_us(reverify, m, given.repeats), True),
        ("verify, seen before", median_us(lambda: verify_module.verify(tidy), m, given.repeats), True),
        ("show", median_us(lambda: show(tidy, table=[]), m, given.repeats), False),
        ("parse", median_us(lambda: parse(text, table), m, given.repeats), False),
    ]
    for name, us, pass_ in rows:
        over = "  over the budget" if pass_ and us > BUDGET else ""
        print(f"{name:42} {us:7.1f} us per node{over}")


if __name__ == "__main__":
    main()
