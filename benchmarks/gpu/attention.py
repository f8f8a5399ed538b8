"""Attention and its gradients beside PyTorch's flash attention: microseconds on the GPU, and errors beside float32.

    timeout 55 python -m benchmarks.gpu.attention                      # all, or
    timeout 55 python -m benchmarks.gpu.attention --only 32x6x197x64

Each is captured 10 times in a graph; graphs are replayed in turns, and medians told. A share is of the five products of
the backward pass and the two of the forward pass, at 989 TFLOP/s.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.gpu.graphed import timed
from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, bf16
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.executor import CompiledModel

CALLS, ROUNDS = 10, 9
PEAK = 989e12  # bfloat16, of an H100 or H200
SHAPES = {  # batch, heads, length, head size: causal
    (32, 6, 197, 64): False,
    (16, 12, 128, 64): False,
    (8, 12, 256, 64): True,
    (8, 12, 512, 64): True,
    (4, 16, 1024, 128): True,
    (2, 16, 4096, 64): True,
    (2, 16, 4096, 128): True,
}
_aten = torch.ops.aten


def compiled(shape: tuple[int, int, int, int], causal: bool) -> CompiledModel:
    """q, k, v, g -> y, dq, dk, dv"""
    q, k, v, g = (Input(name, TensorType(bf16, shape))() for name in "qkvg")
    kind, scale = "upper_left" if causal else "none", shape[3] ** -0.5
    y = ops.Attention(kind, scale)(q, k, v)
    gradients = ops.AttentionGradients(kind, scale)(q, k, v, g).results
    # as the projections around attention have them, so that nothing is copied
    turned = [ops.Transpose((0, 2, 1, 3))(x) for x in (y, *gradients)]
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    return CompiledModel(build_program(Graph((q, k, v, g), tuple(turned)), features_of(f"cuda:{arch}"), 1))


def flash(operands: Sequence[Tensor], causal: bool) -> list[Tensor]:
    q, k, v, g = operands
    y, sums, at, ak, most_q, most_k, seed, offset, _ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    back = _aten._scaled_dot_product_flash_attention_backward
    return [y, *back(g, q, k, v, y, sums, at, ak, most_q, most_k, 0.0, causal, seed, offset)]


def exact(operands: Sequence[Tensor], causal: bool) -> list[Tensor]:
    q, k, v, g = (x.float() for x in operands)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    s = leaves[0] @ leaves[1].mT * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(), -torch.inf)
    y = s.softmax(-1) @ leaves[2]
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


def distance(got: Sequence[Tensor], want: Sequence[Tensor]) -> str:
    return " ".join(f"{float((a.float() - b).norm() / b.norm()):.1e}" for a, b in zip(got, want, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one shape, as 32x6x197x64")
    only = parser.parse_args().only
    print(
        "batch x heads x length x head | Ingot us | flash us | flash / Ingot | Ingot's share | errors y dq dk dv: both"
    )
    for shape, causal in SHAPES.items():
        name = "x".join(map(str, shape))
        if only not in (None, name):
            continue
        torch.manual_seed(0)
        operands = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        model = compiled(shape, causal)
        calls = [
            timed(lambda m=model, o=operands: m(*o), CALLS),
            timed(lambda o=operands, c=causal: flash(o, c), CALLS),
        ]
        times = [[call() for call in calls] for _ in range(ROUNDS)]
        own, other = (statistics.median(t) for t in zip(*times, strict=True))
        batch, heads, length, size = shape
        flops = 7 * 2 * batch * heads * length * length * size * (0.5 if causal else 1)
        errors = "not computed"
        if batch * heads * length * length <= 1 << 28:
            want = exact(operands, causal)
            own_results = [x.transpose(1, 2) for x in model(*operands)]
            errors = f"{distance(own_results, want)}; {distance(flash(operands, causal), want)}"
        share = flops / (own * 1e-6) / PEAK
        print(
            f"{name}{' causal' * causal} | {own:.1f} | {other:.1f} | {other / own:.2f} | {share:.0%} | {errors}",
            flush=True,
        )


if __name__ == "__main__":
    main()
