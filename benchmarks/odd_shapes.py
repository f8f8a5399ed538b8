"""Products, convolutions and single layers of shapes that no well-known network has, against PyTorch eager.

python -m benchmarks.odd_shapes [product conv layer | any part of a name ...] [--threads 2] [--json FILE]

Whole calls from Python, both engines in bursts by turns, with a rest between (an engine's threads may spin after a
call) and the first call of each not counted; medians. The layouts are PyTorch's, so that convolutions of images pay
for changing theirs. Products: [batch x] m x k x n, both operands given at run time (nn; nt: the second one
transposed; tn: the first one) or the second a constant. `error` is the largest deviation over the largest magnitude.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from benchmarks.measure import cpu_name, deviation

BURSTS, BURST, REST = 5, 0.03, 0.02  # bursts of each engine; seconds of one, and before it
Case = tuple[str, nn.Module, tuple[Tensor, ...]]

PRODUCTS = [
    (1, 1000000, 1), (1000, 1000, 1), (4096, 4096, 1), (1, 4096, 4096), (3, 4096, 4096), (4, 100000, 4),
    (16, 100000, 16), (64, 50176, 64), (1, 65536, 16), (2, 8192, 32), (4096, 64, 3), (100000, 4, 4), (8, 8, 100000),
    (127, 129, 131), (512, 512, 512), (1000, 1000, 1000), (2048, 16, 2048),
]  # fmt: skip
BATCHED = [(256, 1, 64, 64), (256, 64, 64, 1), (96, 49, 32, 49), (1000, 3, 3, 3), (12, 128, 64, 128)]
# input and output channels, window, image, and what else the layer has
CONVOLUTIONS: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    "3 outputs 3x3": (64, 3, 3, 224, {"padding": 1}),
    "1 output 1x1": (64, 1, 1, 256, {}),
    "3 outputs 9x9": (32, 3, 9, 256, {"padding": 4}),
    "8 outputs 3x3": (512, 8, 3, 64, {"padding": 1}),
    "32 groups of 4": (128, 128, 3, 56, {"padding": 1, "groups": 32}),
    "32 groups of 8": (256, 256, 3, 28, {"padding": 1, "groups": 32}),
    "32 groups of 1 to 2": (32, 64, 3, 56, {"padding": 1, "groups": 32}),
    "2 groups 5x5": (96, 256, 5, 27, {"padding": 2, "groups": 2}),
    "dilation 12": (256, 256, 3, 33, {"padding": 12, "dilation": 12}),
    "dilation 24": (64, 64, 3, 33, {"padding": 24, "dilation": 24}),
    "depthwise 31x31": (128, 128, 31, 28, {"padding": 15, "groups": 128}),
}


class Product(nn.Module):
    def __init__(self, layout: str, constant: Tensor | None) -> None:
        super().__init__()
        self.layout, self.constant = layout, constant

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        second = self.constant if b is None else b
        assert second is not None
        first = a.mT if self.layout[0] == "t" else a
        return first @ (second.mT if self.layout[1] == "t" else second)


class Layer(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.function(x) if y is None else self.function(x, y)


def products() -> Iterator[Case]:
    for batch, m, k, n in [*((0, *sizes) for sizes in PRODUCTS), *BATCHED]:
        lead = (batch,) if batch else ()
        title = "x".join(map(str, (*lead, m, k, n)))
        for layout in ("nn", "nt", "tn"):
            a = torch.randn(*lead, *((k, m) if layout[0] == "t" else (m, k)))
            b = torch.randn(*lead, *((n, k) if layout[1] == "t" else (k, n)))
            yield f"product {title} {layout}", Product(layout, None), (a, b)
            if layout == "nn" and not batch:
                yield f"product {title} constant", Product(layout, b), (a,)


def convolutions() -> Iterator[Case]:
    for name, (inputs, outputs, window, size, more) in CONVOLUTIONS.items():
        layer = nn.Conv2d(inputs, outputs, window, **more)
        yield f"conv {name}, {inputs} -> {outputs} at {size}x{size}", layer, (torch.randn(1, inputs, size, size),)


def layers() -> Iterator[Case]:
    image, wave, filters = torch.randn(1, 64, 56, 56), torch.randn(1, 16000), torch.randn(400, 80)
    index = torch.randint(0, 1000, (20000, 1))
    near = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(64, 64, 3))
    head = nn.Sequential(nn.Conv2d(256, 21, 1), nn.Upsample(scale_factor=8, mode="bilinear"))
    yield "layer top 50 of 50257", Layer(lambda x: torch.topk(x, 50)[0]), (torch.randn(1, 50257),)
    yield "layer top 5 of 1000, 64 rows", Layer(lambda x: torch.topk(x, 5)[0]), (torch.randn(64, 1000),)
    yield "layer frames of 400 times 80", Layer(lambda x, w: x.unfold(-1, 400, 160) @ w), (wave, filters)
    yield "layer patches of 3x3", Layer(lambda x: F.unfold(x, 3, padding=1)), (image,)
    sums = Layer(lambda x, at: torch.zeros(1000, 64).scatter_add(0, at.expand(-1, 64), x))
    yield "layer rows added by index", sums, (torch.randn(20000, 64), index)
    yield "layer nearest, reflected, convolved", near, (image,)
    yield "layer 21 classes, bilinear 8x", head, (torch.randn(1, 256, 28, 28),)


def burst(call: Callable[[], object]) -> list[float]:
    """Seconds of each of some calls."""
    time.sleep(REST)
    call()
    times, end = [], time.perf_counter() + BURST
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def measure(name: str, net: nn.Module, args: tuple[Tensor, ...], threads: int) -> dict[str, float | str]:
    compiled = ingot.compile(net.eval(), args, threads=threads, cache=False)
    ours: list[float] = []
    theirs: list[float] = []
    with torch.inference_mode():
        error = deviation(compiled(*args).numpy(), net(*args).numpy())
        for _ in range(BURSTS):
            ours += burst(lambda: compiled(*args))
            theirs += burst(lambda: net(*args))
    mine, other = float(np.median(ours)) * 1e6, float(np.median(theirs)) * 1e6
    return {"name": name, "ingot us": mine, "torch us": other, "ratio": other / mine, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description="shapes that no well-known network has, against PyTorch eager")
    parser.add_argument("names", nargs="*", help="parts of names; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    print(f"{cpu_name()}, {args.threads} threads, torch {torch.__version__}")
    rows: list[dict[str, float | str]] = []
    for name, net, xs in [*products(), *convolutions(), *layers()]:
        if args.names and not any(part in name for part in args.names):
            continue
        row = measure(name, net, xs, args.threads)
        rows.append(row)
        print(
            f"{name:48s} {row['ingot us']:10.1f} us  torch {row['torch us']:10.1f} us  {row['ratio']:6.2f}x"
            f"  error {row['error']:.0e}", flush=True,
        )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
