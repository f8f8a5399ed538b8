"""PyTorch's own samples of its modules (ModuleInfo) through `torch.compile(backend="ingot")` against eager.

    python tools/module_info.py [--mode train|eval] [--grad] [--samples N] [--dynamic] [NAME ...]

A sample agrees when it is compiled whole, recurrent layers too, and results and the module's buffers afterwards have
eager's structure, types, shapes and, where eager does not draw random numbers, values. With --grad so have gradients of
all parameters and floating arguments, from random cotangents of all results.
"""

from __future__ import annotations

import argparse
import copy
import logging
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported, UserError
from torch.utils import _pytree as pytree

MODES = ("eval", "train")
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class Outcome:
    """result: agrees | differs | refused | error | broken (dynamo would leave a part, or all, to eager PyTorch) |
    skipped (eager itself fails, or there is nothing to compile)."""

    result: str
    detail: str = ""


def entries() -> list[Any]:
    """PyTorch's list of modules with samples; empty where its own test dependencies are not installed."""
    from torch.testing._internal.common_modules import module_db

    return [m for m in module_db if torch.float32 in m.dtypes]


def samples(entry: Any, mode: str, count: int) -> Iterator[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """A seeded choice of (module, arguments, keyword arguments)."""
    training = mode == "train"
    given = entry.module_inputs_func(entry, device="cpu", dtype=torch.float32, requires_grad=False, training=training)
    if len(given) > count:
        given = random.Random(entry.name).sample(given, count)
    for one in given:
        if one.forward_input is None:
            continue
        torch.manual_seed(0)
        built = entry.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
        yield built.to(torch.float32).train(training), one.forward_input.args, one.forward_input.kwargs


def compare(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: str | Callable[..., Any],
    dynamic: bool,
    grad: bool = False,
) -> Outcome:
    def called(net: nn.Module, run: Callable[..., Any], seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        own = copy.deepcopy((args, kwargs))
        leaves = [x for x in pytree.tree_leaves(own) if grad and isinstance(x, Tensor) and x.is_floating_point()]
        for x in leaves:
            x.requires_grad_()
        with torch.set_grad_enabled(grad):
            out = run(*own[0], **own[1])
        found = [*_gradients(out, [*net.parameters(), *leaves])] if grad else []
        return pytree.tree_map_only(Tensor, Tensor.detach, out), [b.clone() for b in net.buffers()], found

    try:
        nets = [copy.deepcopy(module) for _ in range(3)]
        expected, again = called(nets[0], nets[0], 1), called(nets[1], nets[1], 2)
    except Exception as e:
        return Outcome("skipped", f"{type(e).__name__}: {e}")
    drawn = not _same(expected, again, exact=True)
    torch._dynamo.reset()
    try:
        # recurrent layers, too, which dynamo would leave to eager PyTorch
        with torch._dynamo.config.patch(allow_rnn=True):
            got = called(nets[2], torch.compile(nets[2], backend=backend, dynamic=dynamic, fullgraph=True), 1)
    except (Unsupported, UserError) as e:
        return Outcome("broken", " ".join(str(e).split())[:300])
    except Exception as e:
        inner = getattr(e, "inner_exception", None) or e.__cause__ or e
        refused = "ingot" in type(e).__module__ or "ingot" in type(inner).__module__
        return Outcome(
            "refused" if refused else "error", f"{type(inner).__name__}: {' '.join(str(inner).split())[:300]}"
        )
    return Outcome("agrees" if _same(got, expected, values=not drawn) else "differs")


def _gradients(out: Any, leaves: list[Tensor]) -> list[Tensor | None]:
    """Of the leaves, from seeded cotangents of all results that have any."""
    results = [y for y in pytree.tree_leaves(out) if isinstance(y, Tensor) and y.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    rng = torch.Generator().manual_seed(0)
    seeds = [torch.randn(y.shape, generator=rng, dtype=y.dtype) for y in results]
    return list(torch.autograd.grad(results, wanted, seeds, allow_unused=True)) if results and wanted else []


def _same(got: tuple[Any, ...], expected: tuple[Any, ...], *, values: bool = True, exact: bool = False) -> bool:
    (mine, shape), (theirs, wanted) = pytree.tree_flatten(got), pytree.tree_flatten(expected)
    first = len(theirs) - len(pytree.tree_leaves(expected[-1]))  # of the gradients
    pairs = enumerate(zip(mine, theirs, strict=True)) if shape == wanted else []
    return shape == wanted and all(_agree(g, w, values, exact, i >= first) for i, (g, w) in pairs)


def _agree(got: Any, expected: Any, values: bool, exact: bool, is_gradient: bool) -> bool:
    """Gradients of parameters are sums of many terms, which cancel: their errors are of the size of the largest."""
    if not isinstance(expected, Tensor):
        return not values or got == expected
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return False
    tolerance = 0.0 if exact else TOLERANCES.get(expected.dtype, 0.0)
    size = max(1.0, expected.abs().max().item()) if is_gradient and expected.numel() else 1.0
    return not values or torch.allclose(got, expected, rtol=tolerance, atol=tolerance / 10 * size, equal_nan=True)


def check(
    entry: Any,
    mode: str,
    count: int,
    backend: str | Callable[..., Any] = "ingot",
    dynamic: bool = False,
    grad: bool = False,
) -> Outcome:
    """The first sample that does not agree decides."""
    outcome = Outcome("skipped", "no samples")
    for module, args, kwargs in samples(entry, mode, count):
        found = compare(module, args, kwargs, backend, dynamic, grad)
        if found.result not in ("agrees", "skipped"):
            return found
        if found.result == "agrees":
            outcome = found
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="regular expressions; default: all")
    parser.add_argument("--mode", choices=MODES, help="default: both")
    parser.add_argument("--samples", type=int, default=4, help="of each module (default %(default)s)")
    parser.add_argument("--grad", action="store_true", help="gradients as well")
    parser.add_argument("--dynamic", action="store_true", help="torch.compile(dynamic=True)")
    options = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    pattern = re.compile("|".join(options.names))
    results: list[str] = []
    for mode in (options.mode,) if options.mode else MODES:
        for entry in entries():
            if pattern.search(entry.name):
                outcome = check(entry, mode, options.samples, dynamic=options.dynamic, grad=options.grad)
                results.append(outcome.result)
                print(f"{outcome.result:8} {mode:6} {entry.name:44} {outcome.detail}", flush=True)
    print(", ".join(f"{results.count(r)} {r}" for r in sorted(set(results))))


if __name__ == "__main__":
    main()
