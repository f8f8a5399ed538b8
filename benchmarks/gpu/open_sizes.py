"""The promised models of the zoo with open batch and length through `target="cuda"`, at several sizes: are they right?

    python -m benchmarks.gpu.open_sizes [--only lstm,unet] [--workers 8] [--dtype float16] [--report FILE]

A float32 program is compiled in the type that is named, and each call is judged beside PyTorch in float32, as far
as PyTorch's own 16 bits are from that. Each model has a process of its own, with a limit of time.
"""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

from benchmarks import zoo
from benchmarks.gpu.judged import deviations, session


def judge(name: str, dtype: str, target: str) -> dict[str, Any]:
    """The largest deviations over three sizes, of the largest magnitude, and those of PyTorch in the same type."""
    import torch

    import ingot

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = zoo.get(name)
    begin = time.perf_counter()
    compiled = ingot.compile(model.to_exported(), target=target, precision=dtype)
    seconds = time.perf_counter() - begin
    kind = getattr(torch, dtype)
    wide = model.to_torch().cuda()
    narrow = wide if dtype == "float32" else copy.deepcopy(wide).to(kind)
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


if __name__ == "__main__":
    names = zoo.names(1)
    sys.exit(session("benchmarks.gpu.open_sizes", __doc__, judge, names, dtype="float16", seconds=170))
