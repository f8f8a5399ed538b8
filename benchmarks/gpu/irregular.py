"""On a machine with an NVIDIA GPU: sorts, scans, scatters, pools, and reductions that lie badly, beside eager PyTorch.

    python -m benchmarks.gpu.irregular [--seconds 60] [--only sort,cumsum]

Programs are compiled in processes of their own and called one after another; a watchdog ends what does not come back.
Times are microseconds of a call in a row of up to 50. Difference: of integers which part, of floats the largest one of
the largest magnitude.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F

import ingot

WORKERS = 12
Function = Callable[..., Any]
Case = tuple[Function, tuple[torch.Tensor, ...]]


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return _orders() | _folds() | _moves() | _odd()


def _ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def _added(size: int) -> Function:
    return lambda i, g: torch.zeros(size, *g.shape[1:], device=i.device).index_add(0, i, g)


def _orders() -> dict[str, Case]:
    r = torch.randn
    return {
        "topk50 8x128256": (lambda x: torch.topk(x, 50), (r(8, 128256),)),
        "topk50 1x128256 f16": (lambda x: torch.topk(x, 50)[0], (r(1, 128256).half(),)),
        "sort 1x128256": (lambda x: torch.sort(x, descending=True, stable=True), (r(1, 128256),)),
        "sort 100000 i64": (lambda x: torch.sort(x, stable=True), (_ints(1 << 40, 100000),)),
        "sort 4096x256": (lambda x: torch.sort(x, dim=-1, stable=True), (r(4096, 256),)),
        "sort 64x8192": (lambda x: torch.sort(x, dim=-1, stable=True), (r(64, 8192),)),
        "nonzero 1M": (lambda x: x.nonzero(), ((r(1 << 20) > 1).float(),)),
        "unique 20000": (lambda x: torch.unique(x), (_ints(5000, 20000),)),
    }


def _folds() -> dict[str, Case]:
    r = torch.randn
    image = r(32, 64, 112, 112)
    return {
        "argmax 1x128256": (lambda x: x.argmax(-1), (r(1, 128256),)),
        "argmax 64x128256": (lambda x: x.argmax(-1), (r(64, 128256),)),
        "softmax 1x128256": (lambda x: x.softmax(-1), (r(1, 128256),)),
        "softmax 16x128256": (lambda x: x.softmax(-1), (r(16, 128256),)),
        "sum 1M": (lambda x: x.sum(), (r(1 << 20),)),
        "sum 16M": (lambda x: x.sum(), (r(1 << 24),)),
        "layer_norm 4x262144": (lambda x: F.layer_norm(x, x.shape[1:]), (r(4, 262144),)),
        "sum axis 0 65536x256": (lambda x: x.sum(0), (r(65536, 256),)),
        "sum axis 0 1Mx16": (lambda x: x.sum(0), (r(1 << 20, 16),)),
        "softmax axis 0 4096x1024": (lambda x: x.softmax(0), (r(4096, 1024),)),
        "mean hw nhwc 32x56x56x256": (lambda x: x.mean((1, 2)), (r(32, 56, 56, 256),)),
        "mean hw nchw 32x256x56x56": (lambda x: x.mean((2, 3)), (r(32, 256, 56, 56),)),
        "moments of channels 32x64x112x112": (lambda x: torch.var_mean(x, (0, 2, 3), correction=0), (image,)),
        "cumsum 1M": (lambda x: x.cumsum(0), (r(1 << 20),)),
        "cumsum 16M": (lambda x: x.cumsum(0), (r(1 << 24),)),
        "cumsum 64x16384": (lambda x: x.cumsum(1), (r(64, 16384),)),
        "cumsum 4096x1024 axis 0": (lambda x: x.cumsum(0), (r(4096, 1024),)),
        "max_pool 32x64x112x112": (lambda x: F.max_pool2d(x, 3, 2, 1), (image,)),
        "max_pool nhwc": (
            lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1), (r(32, 112, 112, 64),),
        ),
        "avg_pool 7x7 of 32x64x56x56": (lambda x: F.avg_pool2d(x, 7, 1, 3), (r(32, 64, 56, 56),)),
    }  # fmt: skip


def _moves() -> dict[str, Case]:
    r = torch.randn
    table, rows = r(30522, 768), (_ints(30522, 4096), r(4096, 768))

    def pool_gradient(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        _, at = F.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return back(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at)

    return {
        "transpose 8192": (lambda x: x.t().contiguous(), (r(8192, 8192),)),
        "nchw to nhwc 32x256x56x56": (lambda x: x.permute(0, 2, 3, 1).contiguous(), (r(32, 256, 56, 56),)),
        "one_hot 65536x100": (lambda i: F.one_hot(i, 100), (_ints(100, 65536),)),
        "gather rows 4096 of 30522x768": (lambda t, i: t[i], (table, rows[0])),
        "take_along 4096x1024": (lambda x, i: x.gather(1, i), (r(4096, 1024), _ints(1024, 4096, 1024))),
        "fft 64x4096": (lambda x: torch.view_as_real(torch.fft.rfft(x)), (r(64, 4096),)),
        "index_add 4096x768 to 30522": (_added(30522), rows),
        "index_put 4096x768": (lambda t, i, g: t.index_put((i,), g), (table, torch.randperm(30522)[:4096], rows[1])),
        "index_add 1M to 10000": (_added(10000), (_ints(10000, 1 << 20), r(1 << 20))),
        "index_add 262144x32 to 20000": (_added(20000), (_ints(20000, 1 << 18), r(1 << 18, 32))),
        "index_add 1Mx32 to 100000": (_added(100000), (_ints(100000, 1 << 20), r(1 << 20, 32))),
        "max_pool gradient 32x64x56x56": (pool_gradient, (r(32, 64, 28, 28), r(32, 64, 56, 56))),
    }


def _odd() -> dict[str, Case]:
    """Small ones, of which matters whether they are right."""
    r = torch.randn
    odd = r(3, 5001)
    odd[:, ::37], odd[:, ::41], odd[:, ::43] = float("nan"), float("inf"), -0.0
    skewed = torch.where(torch.rand(8192) < 0.5, 0, _ints(1000, 8192))
    return {
        "odd sort f16 ties": (lambda x: torch.sort(x, dim=-1, stable=True), ((odd * 4).round().half(),)),
        "odd sort axis 0": (lambda x: torch.sort(x, dim=0, descending=True, stable=True), (odd.t().contiguous(),)),
        "odd sort bool": (lambda x: torch.sort(x, stable=True), (r(3000) > 0,)),
        "odd argmax nan": (lambda x: x.argmax(-1), (torch.cat([odd] * 9, 1),)),
        "odd logsumexp axis 0": (lambda x: x.logsumexp(0), (r(5001, 37),)),
        "odd any axis 0": (lambda x: x.any(0), (r(70001, 5) > 4.2,)),
        "odd cumsum i8": (lambda x: x.flip(0).cumsum(0, dtype=torch.int8).flip(0), (_ints(9, 5001).to(torch.int8),)),
        "odd cumprod": (lambda x: x.cumprod(0), (1 + r(5001) * 1e-3,)),
        "odd index_add 1001x19": (_added(37), (_ints(37, 1001), r(1001, 19) / 64)),
        "odd amin": (lambda t, i, v: t.scatter_reduce(0, i, v, "amin"), (r(50, 7), _ints(50, 333, 7), r(333, 7))),
        "odd skewed index_add": (_added(1000), (skewed, r(8192, 64))),
    }


class _Net(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def compiled(name: str, path: str) -> str:
    """Write a case's program to `path`; what is wrong, if it has none."""
    torch.set_num_threads(1)
    function, args = cases()[name]
    try:
        ingot.compile(_Net(function).eval(), args, target="cuda:sm_90a").save(path)
    except Exception as e:  # one that is refused is a line of the report
        return f"{type(e).__name__}: {str(e)[:300]}"
    return ""


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if not isinstance(value, tuple | list):
        yield torch.as_tensor(value)
        return
    for x in value:
        yield from _flat(x)


def difference(got: Any, want: Any) -> float:
    """Infinite where shapes, infinities or NaN are others."""
    worst = 0.0
    for a, b in zip(_flat(got), _flat(want), strict=True):
        if a.shape != b.shape:
            return float("inf")
        if not b.is_floating_point():
            worst = max(worst, (a != b).float().mean().item())
            continue
        a, b = a.to(b.device).double(), b.double()
        finite = b.isfinite()
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()) or not torch.equal(a.isfinite(), finite):
            return float("inf")
        scale = b[finite].abs().max().clamp(min=1e-9)
        worst = max(worst, ((a[finite] - b[finite]).abs().max() / scale).item())
    return worst


def timed(call: Callable[[], object]) -> float:
    """Microseconds: the median of three rows of calls."""
    found: list[float] = []
    turns = 1
    for turn in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(turns):
            call()
        torch.cuda.synchronize()
        took = (time.perf_counter() - start) / turns
        if turn == 0:
            turns = max(1, min(50, int(0.08 / max(took, 1e-5))))
        else:
            found.append(took)
    return sorted(found)[1] * 1e6


def measured(name: str, path: str) -> str:
    function, args = cases()[name]
    args = tuple(a.cuda() for a in args)
    model = ingot.load(path)
    with torch.no_grad():
        worst = difference(model(*args), function(*args))
        twice = zip(_flat(model(*args)), _flat(model(*args)), strict=True)
        same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in twice)
        ours, theirs = timed(lambda: model(*args)), timed(lambda: function(*args))
    told = "" if same else "  two calls differ"
    return f"{name:36} {ours:10.1f} {theirs:10.1f} {ours / theirs:8.2f}  {worst:.2g}{told}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.irregular")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", default="", help="parts of names, with commas")
    options = parser.parse_args()
    names = [n for n in cases() if any(part in n for part in options.only.split(","))]
    end = time.monotonic() + options.seconds

    def watch() -> None:
        time.sleep(max(0.0, end - time.monotonic()))
        print("out of time", flush=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    folder = tempfile.mkdtemp()
    context = multiprocessing.get_context("spawn")
    print(f"{'case':36} {'Ingot us':>10} {'eager us':>10} {'ratio':>8}  difference", flush=True)
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1), context) as pool:
        paths = {name: f"{folder}/{i}.ingot" for i, name in enumerate(names)}
        jobs = {name: pool.submit(compiled, name, path) for name, path in paths.items()}
        for name, job in jobs.items():
            refused = job.result()
            print(f"{name:36} {refused}" if refused else measured(name, paths[name]), flush=True)


if __name__ == "__main__":
    main()
