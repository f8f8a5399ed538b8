"""The promised models of the zoo with open batch and length through `target="cuda"`, at several sizes: are they right?

    python -m benchmarks.gpu.open_sizes [--only lstm,unet] [--workers 6] [--precision float16]

A float32 program is compiled in the precision that is named, and each call is judged beside PyTorch in float32, as far
as PyTorch's own 16 bits are from that. Each model has a process of its own, with a limit of time.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from benchmarks import zoo
from benchmarks.gpu.architectures import TOLERANCE, agrees

SECONDS = 170.0


def judge(name: str, precision: str, target: str) -> dict[str, Any]:
    """The largest deviations over three sizes, of the largest magnitude, and those of PyTorch in the same type."""
    import torch

    import ingot
    from benchmarks.gpu.architectures import deviations

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = zoo.get(name)
    begin = time.perf_counter()
    compiled = ingot.compile(model.to_exported(), target=target, precision=precision)
    seconds = time.perf_counter() - begin
    kind = getattr(torch, precision)
    wide = model.to_torch().cuda()
    narrow = wide if precision == "float32" else copy.deepcopy(wide).to(kind)
    worst = {"deviation": 0.0, "eager": 0.0}
    other = 0 if "length" in model.net.fixed else model.variant[1]
    for batch, length in ((1, 0), (model.variant[0], other), (5, other)):
        inputs = tuple(x.cuda() for x in model.inputs(batch, length))
        with torch.no_grad():
            want = wide(*inputs)
            eager = narrow(*(x.to(kind) if x.is_floating_point() else x for x in inputs))
            for key, got in (("deviation", compiled(*inputs)), ("eager", eager)):
                worst[key] = max(worst[key], *deviations(got, want))
    return {"model": name, **worst, "compile_s": seconds}


def _in_process(name: str, precision: str, target: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.open_sizes", "--one", name, "--precision", precision]
    try:
        done = subprocess.run(
            [*command, "--target", target], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "failed": f"longer than {SECONDS:.0f} s"}
    if done.returncode:
        return {"model": name, "failed": " ".join(done.stderr.split())[-500:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--precision", default="float16", choices=list(TOLERANCE))
    parser.add_argument("--only", default="")
    parser.add_argument("--one", default="")
    parser.add_argument("--workers", type=int, default=6)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(judge(asked.one, asked.precision, asked.target)))
        return 0
    names = [n for n in asked.only.split(",") if n] or zoo.names(1)
    failed = 0
    with ThreadPoolExecutor(asked.workers) as pool:
        # as they end, so that a run that is cut off tells what it found
        for job in as_completed(pool.submit(_in_process, name, asked.precision, asked.target) for name in names):
            row = job.result()
            wrong = not agrees(row, asked.precision)
            failed += wrong
            text = row.get("failed") or f"{row['deviation']:.1e} (eager {row['eager']:.1e}) {row['compile_s']:.1f} s"
            print(f"{'FAILED' if wrong else 'ok':6} {row['model']:24} {text}", flush=True)
    print(f"{len(names) - failed} of {len(names)} agree")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
