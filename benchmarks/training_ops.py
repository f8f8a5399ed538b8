"""Forward and backward of single ops, `torch.compile(backend="ingot")` beside eager PyTorch: where training has holes.

    python benchmarks/training_ops.py                          all of them, one thread
    python benchmarks/training_ops.py max_pool group_norm      those whose names begin so
    python benchmarks/training_ops.py --channels-first         images in PyTorch's own order
    python benchmarks/training_ops.py --json ops.json          what was measured; - for the last line

Images lie with their channels last by default. Both are given the same cotangent; told is the least processor time of
three windows each, in turns. A call through torch.compile costs about 0.1 ms with its gradient: ops that take less in
eager PyTorch say little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]  # run as a script: the package and Ingot's sources are not installed

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import ingot  # noqa: E402, F401  the backend's name

Op = Callable[..., Tensor]
_WINDOW = 0.15  # seconds
_IDS = torch.arange(4096).mul_(2654435761).remainder_(5000).view(64, 64)


def image_of(order: torch.memory_format, channels: int = 32, size: int = 56, batch: int = 8) -> Tensor:
    return torch.randn(batch, channels, size, size).to(memory_format=order)


def pooled_and_back(x: Tensor) -> Tensor:
    y, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y, places, [2, 2])


def of_images(order: torch.memory_format = torch.channels_last) -> dict[str, tuple[Op, Sequence[Tensor]]]:
    image, weight = partial(image_of, order), torch.randn
    up = partial(F.interpolate, scale_factor=2)
    return {
        "nearest": (up, (image(16, 28),)),
        "bilinear": (partial(up, mode="bilinear"), (image(16, 28),)),
        "bicubic": (partial(up, mode="bicubic"), (image(8, 28),)),
        "bilinear, fewer": (partial(F.interpolate, size=(20, 20), mode="bilinear"), (image(16),)),
        "group_norm": (lambda x, w, b: F.group_norm(x, 8, w, b), (image(), weight(32), weight(32))),
        "group_norm 32": (lambda x, w, b: F.group_norm(x, 32, w, b), (image(320, 32, 2), weight(320), weight(320))),
        "layer_norm of channels": (
            lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b).permute(0, 3, 1, 2),
            (image(96, 56, 2), weight(96), weight(96)),
        ),
        "instance_norm": (F.instance_norm, (image(),)),
        "local_response_norm": (partial(F.local_response_norm, size=5), (image(16, 28),)),
        "max_pool 3/2": (partial(F.max_pool2d, kernel_size=3, stride=2, padding=1), (image(),)),
        "max_pool 2": (partial(F.max_pool2d, kernel_size=2), (image(),)),
        "adaptive_max_pool 7": (partial(F.adaptive_max_pool2d, output_size=7), (image(),)),
        "adaptive_max_pool 5": (partial(F.adaptive_max_pool2d, output_size=5), (image(),)),
        "avg_pool 3/1": (partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1), (image(),)),
        "avg_pool 2": (partial(F.avg_pool2d, kernel_size=2), (image(),)),
        "adaptive_avg_pool 7": (partial(F.adaptive_avg_pool2d, output_size=7), (image(),)),
        "adaptive_avg_pool 5": (partial(F.adaptive_avg_pool2d, output_size=5), (image(),)),
        "max_unpool": (pooled_and_back, (image(16, 28),)),
        "pad reflect": (partial(F.pad, pad=(1, 1, 1, 1), mode="reflect"), (image(),)),
        "pad replicate": (partial(F.pad, pad=(2, 2, 2, 2), mode="replicate"), (image(),)),
        "pad circular": (partial(F.pad, pad=(1, 1, 1, 1), mode="circular"), (image(),)),
        "pixel_shuffle": (partial(F.pixel_shuffle, upscale_factor=2), (image(32, 28),)),
        "channel_shuffle": (partial(F.channel_shuffle, groups=4), (image(),)),
        "prelu": (F.prelu, (image(), weight(32))),
        "cat": (lambda a, b: torch.cat((a, b), 1), (image(), image())),
        "grid_sample": (partial(F.grid_sample, align_corners=False), (image(16, 32), torch.rand(8, 32, 32, 2))),
        "unfold": (partial(F.unfold, kernel_size=3, padding=1), (image(16, 28),)),
        "conv 1": (F.conv2d, (image(), weight(64, 32, 1, 1))),
        "conv 3": (partial(F.conv2d, padding=1), (image(), weight(32, 32, 3, 3))),
        "conv 3/2": (partial(F.conv2d, stride=2, padding=1), (image(), weight(64, 32, 3, 3))),
        "conv 3, dilated": (partial(F.conv2d, padding=2, dilation=2), (image(), weight(32, 32, 3, 3))),
        "conv 3, 4 groups": (partial(F.conv2d, padding=1, groups=4), (image(), weight(32, 8, 3, 3))),
        "conv 3, depthwise": (partial(F.conv2d, padding=1, groups=32), (image(), weight(32, 1, 3, 3))),
        "conv 7, depthwise": (partial(F.conv2d, padding=3, groups=32), (image(), weight(32, 1, 7, 7))),
        "conv 7/2, stem": (partial(F.conv2d, stride=2, padding=3), (image(3, 112, 4), weight(32, 3, 7, 7))),
        "conv 16/16, patches": (partial(F.conv2d, stride=16), (image(3, 224, 4), weight(192, 3, 16, 16))),
        "conv_transpose 4/2": (
            partial(F.conv_transpose2d, stride=2, padding=1),
            (image(size=28), weight(32, 16, 4, 4)),
        ),
        "conv_transpose 2/2": (partial(F.conv_transpose2d, stride=2), (image(size=28), weight(32, 16, 2, 2))),
        "conv_transpose 2/2, 4 groups": (
            partial(F.conv_transpose2d, stride=2, groups=4),
            (image(size=28), weight(32, 8, 2, 2)),
        ),
    }


def of_rows() -> dict[str, tuple[Op, Sequence[Tensor]]]:
    normal, square = torch.randn, torch.randn(1024, 1024)
    heads = [normal(2, 8, 256, 32) for _ in range(3)]
    rows = torch.arange(20000).mul_(7919).remainder_(500)
    return {
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (256,), w, b), (normal(8, 128, 256), normal(256), normal(256))),
        "rms_norm": (lambda x, w: F.rms_norm(x, (256,), w), (normal(8, 128, 256), normal(256))),
        "log_softmax": (partial(F.log_softmax, dim=-1), (normal(512, 1000),)),
        "cross_entropy": (partial(F.cross_entropy, target=_IDS.view(-1)[:256]), (normal(256, 8000),)),
        "attention": (partial(F.scaled_dot_product_attention, is_causal=True), heads),
        "embedding": (partial(F.embedding, _IDS), (normal(5000, 64),)),
        "index_add": (lambda s: torch.zeros(500, 64).index_add(0, rows, s), (normal(20000, 64),)),
        **{f.__name__: (f, (square,)) for f in (F.gelu, F.silu, F.mish, torch.tanh, torch.sigmoid, F.softplus, F.elu)},
        "glu": (F.glu, (square,)),
        "dropout": (partial(F.dropout, p=0.1), (square,)),
        "cumsum": (partial(torch.cumsum, dim=-1), (square,)),
        "sort": (lambda x: x.sort(-1)[0], (normal(256, 256),)),
        "topk": (lambda x: x.topk(8, -1)[0], (normal(512, 512),)),
        "var": (partial(torch.var, dim=-1), (square,)),
        "logsumexp": (partial(torch.logsumexp, dim=-1), (square,)),
        "amax": (partial(torch.amax, dim=-1), (square,)),
        "normalize": (F.normalize, (square,)),
        "bmm": (torch.bmm, (normal(32, 64, 64), normal(32, 64, 64))),
        "conv1d 5": (partial(F.conv1d, padding=2), (normal(16, 64, 256), normal(64, 64, 5))),
        "conv1d 7, depthwise": (partial(F.conv1d, padding=3, groups=64), (normal(16, 64, 256), normal(64, 1, 7))),
        "conv3d 3": (partial(F.conv3d, padding=1), (normal(2, 16, 16, 16, 16), normal(16, 16, 3, 3, 3))),
    }


def window(step: Callable[[], object]) -> float:
    """Milliseconds of processor time that a step takes."""
    count, began = 0, time.process_time()
    while not count or time.process_time() - began < _WINDOW:
        step()
        count += 1
    return (time.process_time() - began) / count * 1e3


def measured(op: Op, args: Sequence[Tensor], threads: int) -> tuple[float, float]:
    """Milliseconds of eager PyTorch and of Ingot."""
    leaves = [a.detach().clone(memory_format=torch.preserve_format).requires_grad_() for a in args]
    cotangent = torch.randn_like(op(*leaves))

    def step(f: Op) -> None:
        for leaf in leaves:
            leaf.grad = None
        f(*leaves).backward(cotangent)

    torch._dynamo.reset()
    compiled: Any = torch.compile(op, backend="ingot", fullgraph=True, options={"threads": threads})
    steps = [partial(step, op), partial(step, compiled)]
    for run in steps * 3:
        run()
    eager, own = zip(*([window(run) for run in steps] for _ in range(3)), strict=True)
    return min(eager), min(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="how the ops' names begin; by default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-first", action="store_true", help="images in PyTorch's own order")
    parser.add_argument("--json", help="where to write what was measured; - for the last line")
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    found: dict[str, dict[str, float]] = {}
    order = torch.contiguous_format if asked.channels_first else torch.channels_last
    for name, (op, args) in (of_images(order) | of_rows()).items():
        if asked.names and not name.startswith(tuple(asked.names)):
            continue
        eager, own = measured(op, args, asked.threads)
        found[name] = {"eager_ms": eager, "ingot_ms": own}
        print(f"{name:22} eager {eager:8.3f} ms   ingot {own:8.3f} ms   {eager / own:5.2f}x", flush=True)
    if asked.json == "-":
        print(json.dumps(found))
    elif asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
