"""Torch's higher-order ops: loops, scans, maps, and attention with functions of the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree

import ingot
from ingot.frontends.torch import export_module, import_exported
from ingot.frontends.torch.convert import to_torch
from ingot.ops import Attention, CumReduce
from ingot.passes.core.simplify import simplify
from ingot.passes.model.fuse_attention import fuse_attention
from ingot.support.errors import UnsupportedOpError
from tests.frontends.torch.agree import Function, agree, close, compile_whole, run
from tests.schedule.compiled import slow

Position = Callable[..., Tensor]
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def grows(x: Tensor) -> tuple[Tensor, Tensor]:
    step = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: (i < 7) & (x.sum() < 100), lambda i, x: (i + 1, x * 1.5), (step, x))


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda h, x: (torch.tanh(self.linear(h) + x), h * 2), h, x)


def mapped(x: Tensor, y: Tensor) -> Tensor:
    return cast(Any, map_)(lambda x, y: x.cumsum(0) + y, x, y)


def test_loops() -> None:
    agree(grows, torch.rand(4))
    agree(grows, torch.full((4,), 1000.0))
    agree(Steps(), torch.randn(2, 3), torch.randn(5, 2, 3))
    agree(mapped, torch.randn(6, 3), torch.randn(3))


def test_a_compiled_scan() -> None:
    net, args = Steps().eval(), (torch.randn(2, 3), torch.randn(5, 2, 3))
    with torch.no_grad():
        close(ingot.compile(net, args, cache=False)(*args), net(*args))


def recurrence(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """h[i] = a[i] h[i - 1] + b[i], as pairs (a, b)."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def generic(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return cast(Any, associative_scan)(recurrence, (a, b), dim=0, combine_mode="generic")


def whole(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`generic` as torch keeps it on GPUs: one op."""
    a, b = associative_scan_op(lambda a, b, c, d: [*recurrence((a, b), (c, d))], [a, b], ())
    return a, b


def decayed(x: Tensor, decay: Tensor) -> Tensor:
    return associative_scan_op(lambda a, b, decay: [torch.maximum(a * decay, b)], [x], (decay,))[0]


def ratios(n: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 2, 5), torch.randn(n, 2, 5)


def turned(x: Tensor) -> Tensor:
    """Complex values through every kind of loop and branch."""
    z = torch.complex(x, x * 2)
    step = torch.zeros((), dtype=torch.int64)
    _, z = while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * 1j), (step, z))
    last, z = scan(lambda c, v: (c * v, c + x[0]), z[0], z)
    z = cast(Any, map_)(lambda z, y: z * y, z, last)
    z = torch.cond(x.sum() > 0, lambda z: z * 2, lambda z: z.conj() + 1, (z,))
    return torch.view_as_real(z)


def test_complex_loops_and_branches() -> None:
    x = torch.rand(4, 3)
    agree(turned, x)
    agree(turned, -x)


def test_an_associative_scan_of_complex_numbers() -> None:
    def product(x: Tensor) -> Tensor:
        return torch.view_as_real(associative_scan_op(lambda a, b: [a * b], [torch.complex(x, x + 1)], ())[0])

    agree(product, torch.randn(6, 3))


def test_a_refused_op_that_writes_is_named() -> None:
    @torch.library.custom_op("ingot_test::increase", mutates_args={"x"})
    def increase(x: Tensor) -> None:
        x.add_(1)

    def increased(x: Tensor) -> Tensor:
        y = x * 2
        increase(y)
        return y

    with pytest.raises(UnsupportedOpError, match=r"ingot_test\.increase\.default .*in auto_functionalized"):
        import_exported(export_module(Function(increased), (torch.randn(3),)))


@pytest.mark.parametrize("length", [1, 2, 7])
def test_an_associative_scan(length: int) -> None:
    a, b = ratios(length)
    agree(generic, a, b)
    close(run(import_exported(export_module(Function(whole), (a, b))), a, b), generic(a, b))
    rows = [b[0]]
    for row in b[1:]:
        rows.append(torch.maximum(rows[-1] * a[0], row))
    with torch.no_grad():
        close(compile_whole(decayed)(b, a[0]), torch.stack(rows))


def test_an_associative_scan_of_open_length() -> None:
    compiled = compile_whole(whole, dynamic=True)
    with torch.no_grad():
        for length in (3, 8, 1, 40):
            a, b = ratios(length)
            a[0, 0, 0], b[-1, 1, 2] = torch.nan, torch.inf
            close(compiled(a, b), generic(a, b))


@pytest.mark.parametrize(
    ("function", "cumulative"),
    [(torch.add, torch.cumsum), (torch.mul, torch.cumprod), (torch.maximum, lambda x, d: x.cummax(d)[0]),
     (torch.minimum, lambda x, d: x.cummin(d)[0])],
)  # fmt: skip
def test_an_associative_scan_that_is_cumulative(function: Any, cumulative: Any) -> None:
    def scanned(x: Tensor) -> Tensor:
        return associative_scan_op(lambda a, b: [function(b, a)], [x], ())[0]

    for x in (torch.randn(6, 3), torch.randint(-9, 9, (6, 3), dtype=torch.int32)):
        model = import_exported(export_module(Function(scanned), (x,)))
        assert any(isinstance(n.op, CumReduce) for n in model.graph.nodes())
        close(run(model, x), cumulative(x, 0).to(x.dtype))
    bits = torch.tensor([False, True, False, True])
    close(run(import_exported(export_module(Function(scanned), (bits,))), bits), scanned(bits))


class Decay(nn.Module):
    """A learned linear recurrence."""

    def __init__(self, scanned: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.linear, self.scanned = nn.Linear(5, 5), scanned

    def forward(self, x: Tensor) -> Tensor:
        return self.scanned(torch.sigmoid(self.linear(x)), x)[1]


def test_the_gradient_of_an_associative_scan() -> None:
    x, net = torch.randn(6, 2, 5), Decay(generic)
    net(x).square().mean().backward()
    expected = [p.grad for p in net.parameters()]
    other = Decay(whole)
    other.load_state_dict(net.state_dict())
    trainer = ingot.train(
        other, lambda y, t: (y - t).square().mean(), ingot.optim.SGD(1.0), (x,), (torch.zeros_like(x),)
    )
    trainer(x, torch.zeros_like(x))
    trained = trainer.state_dict()
    net.zero_grad()
    compile_whole(net)(x).square().mean().backward()
    close([p.grad for p in net.parameters()], expected)
    close([p.detach() - to_torch(cast(Any, trained[name])) for name, p in net.named_parameters()], expected)


@torch.compiler.nested_compile_region
def region(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x) * x, x.sum()


def nested(x: Tensor) -> Tensor:
    y, total = cast(Any, region)(x)
    return cast(Any, region)(y)[0] + total


def each(x: Tensor) -> list[Tensor]:
    return cast(Any, foreach_map)(torch.add, [x, x * 2], [x, x])


@pytest.mark.parametrize("function", [nested, each])
def test_regions(function: Callable[[Tensor], Any]) -> None:
    def gradient(called: Callable[[Tensor], Any], x: Tensor) -> tuple[Any, Tensor]:
        x = x.clone().requires_grad_()
        results = called(x)
        (g,) = torch.autograd.grad(torch.stack([y.square().sum() for y in pytree.tree_leaves(results)]).sum(), x)
        return results, g

    x = torch.randn(3, 4)
    close(gradient(compile_whole(function), x), gradient(function if function is nested else each_by_hand, x))


def each_by_hand(x: Tensor) -> list[Tensor]:
    """`each`, which torch only runs compiled."""
    return [x + x, x * 2 + x]


def test_annotated_regions() -> None:
    agree(lambda x: strict_mode(lambda x: (x.sin() * 2,), (x,)), torch.randn(3, 4))
    agree(lambda x: hints_wrapper(lambda x: (x.cos(),), (x,), {}, hints={"kind": "matrix"}), torch.randn(3, 4))


def test_a_product_of_bytes_in_i32() -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((3, 40), (40, 5)))
    agree(lambda x, w: out_dtype(torch.ops.aten.mm.default, torch.int32, x, w), x, w)


class Flex(nn.Module):
    """flex_attention with a function of the scores, or of the positions that are seen."""

    slope: Tensor

    def __init__(self, score: Position | None = None, mask_mod: Position | None = None, **named: Any) -> None:
        super().__init__()
        self.score, self.mask_mod, self.named = score, mask_mod, named
        self.register_buffer("slope", torch.rand(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        mask = None
        if self.mask_mod is not None:
            mask = create_block_mask(self.mask_mod, None, None, q.shape[2], k.shape[2], device="cpu")
        score = self.biased if self.score is Flex.biased else self.score
        return flex_attention(q, k, v, score_mod=score, block_mask=mask, **self.named)

    def biased(self, s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + (j - i) * self.slope[h]


FLEX = {
    "plain": Flex(scale=0.3),
    "biased": Flex(Flex.biased),
    "capped": Flex(lambda s, b, h, i, j: torch.tanh(s / 5) * 5, return_lse=True),
    "causal": Flex(mask_mod=lambda b, h, i, j: i >= j),
    "window": Flex(Flex.biased, lambda b, h, i, j: (i >= j) & (i - j < 9), enable_gqa=True),
    "hidden rows": Flex(mask_mod=lambda b, h, i, j: i > j),
}


@pytest.mark.parametrize("name", ["hidden rows", *slow("window", "plain", "biased", "capped", "causal")])
def test_flex_attention(name: str) -> None:
    net = FLEX[name].eval()
    shared = 2 if "enable_gqa" in net.named else 4
    q, k, v = torch.randn(2, 4, 19, 16), torch.randn(2, shared, 19, 16), torch.randn(2, shared, 19, 16)
    graph = agree(net, q, k, v).graph
    results = [n for n in fuse_attention(simplify(graph)).nodes() if isinstance(n.op, Attention)]
    assert len(results) == 1 and results[0].inputs[1].shape[1] == shared


@pytest.mark.slow
def test_flex_attention_of_nan() -> None:
    net = FLEX["hidden rows"].eval()
    model: Any = import_exported(export_module(net, (torch.randn(2, 4, 19, 16),) * 3))
    q = torch.randn(2, 4, 19, 16)
    q[0, 1, 4, 2], q[1, 2, 0, 3] = torch.nan, torch.inf
    program = ingot.compile(model, cache=False)
    with torch.no_grad():
        close(program(q, q, q), net(q, q, q))


@pytest.mark.slow
def test_flex_attention_under_torch_compile() -> None:
    net, q = FLEX["window"].eval(), torch.randn(2, 4, 19, 16)
    with torch.no_grad():
        close(compile_whole(net)(q, q[:, :2], q[:, 2:]), net(q, q[:, :2], q[:, 2:]))
