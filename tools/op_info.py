"""PyTorch's own samples of its operators (OpInfo) through `torch.compile(backend="ingot")` against eager.

    python tools/op_info.py [--dynamic] [--dtype float32] [--samples N] [--rows] [--shard I/N] [NAME ...]

A sample agrees when it is compiled whole and results, what becomes of its arguments, and gradients of random cotangents
have eager's structure, types, shapes and, where eager does not draw random numbers, values, and images and volumes
eager's strides: of the sample and of one with twice the batch behind it, which torch takes for open sizes. Images and
volumes are given channels last unless --rows. Where Ingot does not agree, aot_eager tells whether any backend could.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.exc import Unsupported, UserError
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.module_info import TOLERANCES, Outcome

Backend = Callable[..., Any]
SECONDS = 120  # of one sample
UNDEFINED = re.compile(r"(^|\.|_)empty(_|$)|^resize_")  # results without values
# of twice the batch there is no one result: bounds are unsorted, elements tie, rows depend on each other
_UNDEFINED_DOUBLED = frozenset(("bucketize", "searchsorted", "msort", "linalg.qr"))
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def entries() -> list[Any]:
    """PyTorch's list of operators with samples; empty where its own test dependencies are not installed."""
    from torch.testing._internal import common_methods_invocations

    # what sets a seed before each call, which dynamo does not trace; each call here has its own
    for module in [m for name, m in list(sys.modules.items()) if name.startswith("torch.testing._internal")]:
        if hasattr(module, "wrapper_set_seed"):
            setattr(module, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))  # noqa: B010
    return list(common_methods_invocations.op_db)


def samples(entry: Any, dtype: torch.dtype, count: int) -> Iterator[tuple[Any, Backend]]:
    """A seeded choice of (arguments, keyword arguments), and for each the operator, followed by what makes its results
    unique: |x| of eigenvectors, whose signs are free."""
    torch.manual_seed(0)
    grad = entry.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    found = list(entry.sample_inputs("cpu", dtype, requires_grad=grad))
    for one in random.Random(entry.name).sample(found, min(count, len(found))):
        yield ((one.input, *one.args), dict(one.kwargs)), _unique(entry.op, one.output_process_fn_grad)


def _unique(op: Backend, process: Callable[[Any], Any]) -> Backend:
    return lambda *args, **kwargs: process(op(*args, **kwargs))


def compare(
    function: Backend, sample: Any, backend: str | Backend, dynamic: bool, rows: bool, doubles: bool = True
) -> Outcome:
    """doubles: whether the sample with twice the batch is one, too."""
    flat, spec = pytree.tree_flatten(sample)
    if any(isinstance(x, Tensor) and (x.layout is not torch.strided or x.is_quantized or x.is_nested) for x in flat):
        return Outcome("skipped", "sparse, nested or quantized")

    def called(run: Callable[..., Any], leaves: list[Any], seed: int) -> dict[str, list[Any]]:
        args, kwargs = pytree.tree_unflatten([_fresh(x, rows) for x in leaves], spec)
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        torch.manual_seed(seed)
        out, structure = pytree.tree_flatten(run(*args, **kwargs))
        return {
            "structure": [structure],
            "result": [x.detach() if isinstance(x, Tensor) else x for x in out],
            "gradient": _gradients(out, [x for x in given if x.requires_grad]),
            "argument": [x.detach() for x in given],
        }

    graphs: list[int] = []

    def counted(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        from torch._dynamo.backends.registry import lookup_backend

        graphs.append(sum(node.op.startswith("call_") for node in graph.graph.nodes))
        return (lookup_backend(backend) if isinstance(backend, str) else backend)(graph, inputs, **options)

    def plain(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    torch._dynamo.reset()
    compiled = torch.compile(plain, backend=counted, dynamic=dynamic or None, fullgraph=True)
    outcome = Outcome("skipped", "eager refuses it")
    for batch, leaves in enumerate((flat, *(_doubled(flat) if doubles else ()))):
        try:
            expected, *others = (called(plain, leaves, seed) for seed in range(1, 5))
        except Exception as e:
            if batch == 0:
                return Outcome("skipped", f"{type(e).__name__}: {e}"[:200])
            continue
        drawn = any(_difference(other, expected, exact=True) is not None for other in others)
        try:
            got = called(compiled, leaves, 1)
        except (Unsupported, UserError) as e:
            return Outcome("broken", " ".join(str(e).split())[:200])
        except Exception as e:
            inner = getattr(e, "inner_exception", None) or e.__cause__ or e
            refused = "ingot" in type(e).__module__ or "ingot" in type(inner).__module__
            text = f"{type(inner).__name__}: {' '.join(str(inner).split())[:300]}"
            return Outcome("refused" if refused else "error", f"batch {batch}: {text}")
        if not any(graphs):
            return Outcome("skipped", "no operator in the graph")
        difference = _difference(got, expected, values=not drawn)
        if difference:
            return Outcome("differs", f"batch {batch}: {difference}")
        outcome = Outcome("agrees")
        if batch:
            break
    return outcome


def _fresh(x: Any, rows: bool) -> Any:
    """A copy of an argument; an image or a volume has its channels last."""
    if not isinstance(x, Tensor):
        return x
    copy = x.detach().clone()
    if x.dim() in _LAST and not rows:
        copy = copy.contiguous(memory_format=_LAST[x.dim()])
    return copy.requires_grad_(x.requires_grad)


def _doubled(flat: list[Any]) -> Iterator[list[Any]]:
    """The same arguments with twice the batch, of all tensors that have the first one's and of that alone."""
    tensors = [x for x in flat if isinstance(x, Tensor) and x.dim()]
    if not tensors:
        return
    first = tensors[0]

    def twice(x: Any) -> Any:
        return torch.cat([x.detach(), x.detach()]).requires_grad_(x.requires_grad)

    for chosen in (lambda x: x.dim() and len(x) == len(first), lambda x: x is first):
        yield [twice(x) if isinstance(x, Tensor) and chosen(x) else x for x in flat]


def _gradients(out: list[Any], leaves: list[Tensor]) -> list[Tensor | None]:
    """Of the leaves, from seeded cotangents of all results that have any."""
    results = [y for y in out if isinstance(y, Tensor) and y.requires_grad]
    rng = torch.Generator().manual_seed(0)
    seeds = [torch.randn(y.shape, generator=rng).to(y.dtype) for y in results]
    return list(torch.autograd.grad(results, leaves, seeds, allow_unused=True)) if results and leaves else []


def _difference(
    got: dict[str, list[Any]], expected: dict[str, list[Any]], *, values: bool = True, exact: bool = False
) -> str | None:
    for what, wanted in expected.items():
        if len(got[what]) != len(wanted):
            return f"{len(got[what])} {what}s, not {len(wanted)}"
        for i, (g, w) in enumerate(zip(got[what], wanted, strict=True)):
            difference = _of_leaf(g, w, values, exact, what)
            if difference:
                return f"{what} {i}: {difference}"
    return None


def _of_leaf(got: Any, expected: Any, values: bool, exact: bool, what: str) -> str | None:
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        same = got == expected or not values or (got != got and expected != expected)
        if isinstance(got, Tensor) != isinstance(expected, Tensor):  # None stands for zeros
            return None if what == "gradient" else f"{got}, not {expected}"
        return None if same else f"{got}, not {expected}"
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"{got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    if got.layout is not expected.layout:
        return f"{got.layout}, not {expected.layout}"
    if expected.layout is not torch.strided:
        return None
    if values and expected.numel():
        got, expected, lies, wanted = got.resolve_conj(), expected.resolve_conj(), got.stride(), expected.stride()
        tolerance = 0.0 if exact else TOLERANCES.get(expected.dtype, 1e-4 if expected.is_complex() else 0.0)
        finite = expected[expected.isfinite()]
        size = max(1.0, finite.abs().max().item()) if tolerance and finite.numel() else 1.0
        if not torch.allclose(got, expected, rtol=tolerance, atol=tolerance / 10 * size, equal_nan=True):
            return f"values of {tuple(expected.shape)}"
        if not exact and lies != wanted and expected.dim() in _LAST:
            return f"strides {lies}, not {wanted}"
    return None


class _Slow(BaseException):
    pass


def _alarm(*_: object) -> None:
    raise _Slow


def check(entry: Any, dtype: torch.dtype, count: int, backend: str | Backend, dynamic: bool, rows: bool) -> Outcome:
    """The first sample that does not agree decides."""
    outcome = Outcome("skipped", "no samples")
    signal.signal(signal.SIGALRM, _alarm)
    try:
        for number, (sample, function) in enumerate(samples(entry, dtype, count)):
            signal.alarm(SECONDS)
            found = compare(function, sample, backend, dynamic, rows, entry.name not in _UNDEFINED_DOUBLED)
            if found.result not in ("agrees", "skipped"):
                return Outcome(found.result, f"sample {number}, {found.detail}")
            if found.result == "agrees":
                outcome = found
    except _Slow:
        return Outcome("error", f"a sample takes more than {SECONDS} s")
    finally:
        signal.alarm(0)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="regular expressions; default: all")
    parser.add_argument("--samples", type=int, default=4, help="of each operator (default %(default)s)")
    parser.add_argument("--dynamic", action="store_true", help="torch.compile(dynamic=True)")
    parser.add_argument("--dtype", default="float32", help="default: %(default)s")
    parser.add_argument("--rows", action="store_true", help="images and volumes are not channels last")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth operator from the Ith on")
    options = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    pattern, dtype = re.compile("|".join(options.names)), getattr(torch, options.dtype)
    first, step = map(int, options.shard.split("/"))
    chosen = [e for e in entries() if pattern.search(e.name) and e.supports_dtype(dtype, "cpu")]
    results: list[str] = []
    for entry in chosen[first::step]:
        if UNDEFINED.search(entry.name):
            continue
        given = entry, dtype, options.samples
        outcome = check(*given, "ingot", options.dynamic, options.rows)
        if outcome.result in ("differs", "error", "refused", "broken"):
            aot = check(*given, "aot_eager", options.dynamic, options.rows)
            if aot.result != "agrees":
                detail = f"{outcome.result} {outcome.detail}; aot_eager: {aot.result} {aot.detail}"
                outcome = Outcome("unjudged", detail)
        results.append(outcome.result)
        print(f"{outcome.result:8} {entry.formatted_name:44} {outcome.detail}", flush=True)
    print(", ".join(f"{results.count(r)} {r}" for r in sorted(set(results))))


if __name__ == "__main__":
    main()
