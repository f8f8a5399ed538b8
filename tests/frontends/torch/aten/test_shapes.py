"""Views, joins, slices, pads, creation, indexing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from ingot.support.errors import InputError, UnsupportedOpError
from tests.frontends.torch.agree import Function, Spy, agree, close, compile_whole, run


def cube() -> Tensor:
    return torch.arange(2 * 3 * 5, dtype=torch.float32).reshape(2, 3, 5)


ONE: dict[str, Callable[[Tensor], Any]] = {
    "views": lambda x: (
        x.view(6, -1),
        x.reshape(-1),
        x.flatten(1),
        x.unsqueeze(-1),
        x[None].squeeze(0),
        x.squeeze(),
        x.view(2, 3, 1, 5).squeeze(2),
        x.unflatten(2, (5, 1)),
    ),
    "permutes": lambda x: (x.permute(2, 0, 1), x.transpose(0, -1), x.mT, x[0].t(), x.movedim(0, 2), x.swapaxes(1, 2)),
    "expands": lambda x: (x[:, :1].expand(-1, 4, -1), x[0, 0].expand(2, 3, 5), torch.broadcast_to(x[0], (4, 3, 5))),
    "joins": lambda x: (
        torch.cat([x, x[:, :1]], 1),
        torch.stack([x, x + 1], 1),
        torch.stack([x, x], -1),
        torch.hstack([x, x]),
        torch.vstack([x, x]),
        torch.cat([torch.zeros(0), x[0, 0]]),
    ),
    "splits": lambda x: (
        x.split(2, 2),
        x.split([1, 4], 2),
        x.chunk(2, 1),
        x.unbind(1),
        torch.tensor_split(x, 2, 2),
        x.hsplit(3),
        x[0, 0].hsplit(5),
    ),
    "slices": lambda x: (
        x[:, 1:],
        x[..., ::2],
        x[0],
        x[-1, 1:3, -2:],
        x[:, :, 1:-1:3],
        x[:, 5:],
        x.narrow(2, 1, 3),
        x.select(1, -1),
    ),
    "repeats": lambda x: (x.repeat(2, 1, 3), x[0, 0].repeat(3, 2), x.repeat_interleave(2, 1), torch.tile(x, (2,))),
    "rolls": lambda x: (
        x.roll(1),
        x.roll((1, -2), (0, 2)),
        x.roll(7, 1),
        x.flip(0, 2),
        torch.rot90(x, 1, (1, 2)),
        torch.rot90(x, -1, (0, 2)),
    ),
    "pads": lambda x: (
        F.pad(x, (1, 2)),
        F.pad(x, (-1, 1, 2, 0), value=7.0),
        F.pad(x, (2, 1), mode="reflect"),
        F.pad(x, (2, 1), mode="replicate"),
        F.pad(x, (1, 2), mode="circular"),
        F.pad(x, (-1, 2), mode="circular"),
        F.pad(x, (2, -1), mode="circular"),
    ),
    "pads 2d": lambda x: (F.pad(x[None], (1, 2, 0, 1), mode="reflect"), F.pad(x[None], (1, 2, 3, 1), mode="replicate")),
    "unfold": lambda x: (x.unfold(2, 3, 1), x.unfold(2, 2, 2), x.unfold(1, 3, 2)),
    "diagonal": lambda x: (x.diagonal(0, 1, 2), x.diagonal(1, 1, 2), x.diagonal(-1, 1, 2), x[0].diagonal()),
    "diff": lambda x: (x.diff(), x.diff(dim=1, n=2), torch.diff(x, prepend=x[..., :1]), x[:0].diff(dim=0, n=2)),
    "triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1), torch.tril_indices(3, 4, device="cpu")),
    "like": lambda x: (
        torch.zeros_like(x),
        torch.ones_like(x),
        torch.full_like(x, 3),
        x.new_zeros(2),
        x.new_full((2,), 4),
        torch.empty_like(x).fill_(2),
    ),
    "ranges": lambda x: (
        torch.arange(7),
        torch.arange(2, 9, 3),
        torch.arange(0, 1, 0.25),
        torch.linspace(-1, 2, 6),
        torch.eye(3, 4),
        torch.full((2, 2), True),
        torch.arange(3, dtype=torch.float32),
    ),
    "meshgrid": lambda x: (
        torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij") + torch.meshgrid(x[0, 0], x[0, 1], indexing="xy")
    ),
    "embeds": lambda x: (torch.diag_embed(x[0]), torch.diag_embed(x[0], 1), F.one_hot(x[0].long() % 4, 4)),
}


@pytest.mark.parametrize("name", ONE)
def test_shape_ops(name: str) -> None:
    agree(ONE[name], cube())


def test_pixel_shuffles_and_folds() -> None:
    x = torch.randn(2, 8, 4, 6)
    agree(lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 4)), x)
    agree(lambda x: F.unfold(x, (2, 3), dilation=1, padding=1, stride=2), x)
    agree(lambda x: (F.unfold(x, 2, stride=2), F.unfold(x, (1, 3), stride=(2, 3)), x.unfold(3, 3, 1)), x)
    agree(lambda x: F.fold(F.unfold(x, 3, padding=1, stride=1), (4, 6), 3, padding=1), x, tolerance=1e-4)


def put_between(x: Tensor, i: Tensor) -> Tensor:
    y = x[:, None].repeat(1, 3, 1, 1)
    y[i, :, i] = torch.arange(3.0).reshape(3, 1)
    return y


INDEX: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "index": lambda x, i, j: (
        x[i],
        x[:, i],
        x[i, j],
        x[:, i, j],
        x[i, :, j],
        x[i[:, None], j],
        x[..., j],
        x[:, None, j],
    ),
    "select": lambda x, i, j: (
        x.index_select(2, j),
        torch.index_select(x, 0, i),
        torch.take(x, j),
        F.embedding(i, x[0]),
    ),
    "gather": lambda x, i, j: (
        x.gather(2, j.reshape(1, 1, 3).expand(2, 2, 3)),
        x.gather(0, i.reshape(1, 1, 3)),
        torch.take_along_dim(x, j.reshape(1, 1, 3), 2),
    ),
    "scatter": lambda x, i, j: (
        x.scatter(2, j.reshape(1, 1, 3).expand(2, 2, 3), -x),
        x.scatter(1, i.reshape(1, 1, 3), 9.0),
        x.scatter_add(2, j.reshape(1, 1, 3).expand(2, 3, 3), x),
        x.scatter_reduce(2, j.reshape(1, 1, 3).expand(2, 3, 3), x, "amax"),
    ),
    "put": lambda x, i, j: (
        x.index_put((i, j), torch.tensor(5.0)),
        x.index_put((i,), x[i] * 2),
        torch.index_put(x, (i, j), x[i, j], accumulate=True),
        x.index_add(2, j, x[..., :3]),
        x.index_fill(1, i, 3.0),
        x.index_copy(0, i[:2], x),
    ),
    "scatter of booleans": lambda x, i, j: (
        (x > 4).scatter_add(2, j.reshape(1, 1, 3).expand(2, 3, 3), x < 7),
        (x > 4).scatter_reduce(2, j.reshape(1, 1, 3).expand(2, 3, 3), x < 7, "prod"),
        (x > 4).index_add(2, j, x[..., :3] > 2),
        torch.index_put(x > 4, (i, j), x[i, j] > 2, accumulate=True),
        torch.index_put(x > 4, (x > 2,), torch.tensor(True), accumulate=True),
    ),
    "diagonals": lambda x, i, j: (torch.diag(x[0]), torch.diag(x[1], -1), torch.diag(x[0, 0], 2), torch.diag(x[0], 9)),
    "put between": lambda x, i, j: put_between(x, i),
    "mask": lambda x, i, j: (x.index_put((x > 4,), torch.tensor(-1.0)), x.masked_fill(x > 4, 2.0)),
    "masked scatter": lambda x, i, j: (
        x.masked_scatter(x > 4, -x),
        x.masked_scatter(x[0] % 2 == 0, x * 10),
        x.masked_scatter(x > 1000, x),
        x[0].masked_scatter(x > 4, -x),
    ),
    "cross": lambda x, i, j: (
        torch.linalg.cross(x[..., :3], -x[..., 1:4]),
        torch.linalg.cross(x, x[:1] + 1, dim=1),
        torch.cross(x, x * x),
        torch.trace(x[0]),
        torch.trace(x[0].long()),
    ),
    "slices": lambda x, i, j: (
        torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3),
        torch.select_scatter(x, x[0] + 1, 0, -1),
        torch.slice_scatter(x, x[..., :3] - 1, 2, 0, 5, 2),
    ),
}


@pytest.mark.parametrize("name", INDEX)
def test_indexing(name: str) -> None:
    agree(INDEX[name], cube(), torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    bags = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=3)
    agree(bags, torch.tensor([[1, 3, 8], [0, 0, 2], [3, 3, 3]]))
    # the second bag is empty, and so is the last
    agree(bags, torch.tensor([5, 3, 1, 1, 8]), torch.tensor([0, 2, 2, 4, 5]))
    if mode == "sum":
        bags = nn.EmbeddingBag(9, 4, mode=mode, include_last_offset=True)
        agree(lambda i, o, w: bags(i, o, w), torch.tensor([5, 3, 1]), torch.tensor([0, 1, 3]), torch.rand(3))
    # the padding counts from the table's end
    table, indices, offsets = torch.randn(9, 4), torch.tensor([5, 8, 1, 8]), torch.tensor([0, 3])
    agree(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode, padding_idx=-1), table, indices, offsets)


def test_indices_of_no_elements() -> None:
    x, none = torch.randn(5), torch.zeros(5, 0, dtype=torch.int64)
    agree(lambda x, i: (x.gather(0, i), x.gather(0, i[0]), x.scatter(0, i[0], 1.0)), x, none)
    agree(lambda x: F.batch_norm(x, x, x), torch.zeros(0))


class Places(nn.Module):
    def forward(self, x: Tensor, i: Tensor, rows: Tensor, part: Tensor) -> tuple[Tensor, ...]:
        ends = x.slice_scatter(part, 0, -3), x.slice_scatter(part, 0, 0, None, 2)
        return x.index_add(0, i, rows), x.index_copy(0, i, rows), *ends


def test_sizes_that_torch_does_not_compare() -> None:
    """Of what is written; with dynamic sizes, they are conditions of the graph."""
    net, i = Places().eval(), torch.tensor([0, 2])
    args = torch.randn(6, 3), i, torch.randn(2, 3), torch.randn(3, 3)
    model = import_exported(export_module(net, args, True))
    args = torch.randn(6, 4), i + 1, torch.randn(2, 4), torch.randn(3, 4)
    close(run(model, *args), net(*args))


def test_negative_indices() -> None:
    agree(
        lambda x, i: (x[i], x[:, i], x[i, i], x.index_put((i, i), torch.tensor(1.0))), cube(), torch.tensor([-1, 0, -2])
    )


def writes(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 1
    y[..., 1:3] += x[..., :2]
    y[0].mul_(2)
    view = y.view(-1)
    view[3] = -1
    return y


def rebinds(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    y.relu_().add_(x).mul_(2)
    z = x * 2
    view = z.flatten()
    z.add_(1)
    return y, view


def test_in_place_writes() -> None:
    agree(writes, cube())
    agree(rebinds, cube())


def test_writes_of_another_type() -> None:
    def written(x: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.slice_scatter(x, source[:, 1:], 1, 0, 3),
            torch.slice_scatter(x, source[:, ::2], 1, 0, 4, 2),
            torch.slice_scatter(x, source),
            torch.select_scatter(x, source[0], 0, 1),
            torch.diagonal_scatter(x, source[0, :3]),
            torch.as_strided_scatter(x, source[:2, :2], (2, 2), (4, 1)),
        )

    ints = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    for x, source in ((ints, torch.randn(3, 4) * 9), (torch.randn(3, 4).half(), ints), (ints > 4, ints % 3)):
        agree(written, x, source)


def test_as_strided_over_the_same_elements() -> None:
    def renamed(x: Tensor) -> tuple[Tensor, ...]:
        y = x.mean((-1, -2), keepdim=True)
        n, c = y.shape[:2]
        return y.as_strided((n, c, 1, 1), (c, 1, c, c)), y.as_strided((1, c, n), (n, 1, c))

    agree(renamed, torch.randn(2, 3, 4, 5))


def test_as_strided_over_any_elements() -> None:
    def windows(x: Tensor) -> tuple[Tensor, ...]:
        rows = x.as_strided((2, 5, 4, 8), (96, 16, 8, 1))
        return rows, x.as_strided((3, 5), (1, 7), 4), x.as_strided((), (), 5), x.as_strided((3, 0), (1, 7), 4)

    agree(windows, torch.randn(2, 12, 8))
    # overlapping windows of heads, which lie behind the steps in memory
    agree(lambda x: x.transpose(0, 1).as_strided((2, 3, 4, 5), (5, 20, 10, 1)), torch.randn(8, 2, 5))
    agree(lambda x: torch.as_strided_scatter(x.mT, x[:2, 1:], (2, 2), (9, 3), 1), torch.randn(8, 3))
    # of the whole memory, in another order, with repeated and with unit strides
    agree(lambda x: torch.as_strided_scatter(x, 2 * x.reshape(3, 8), (3, 8), (1, 3)), torch.randn(8, 3))
    agree(
        lambda x: torch.as_strided_scatter(x, x[:1, None].expand(3, 1, 3) * 2, (3, 1, 3), (1, 7, 1)), torch.randn(3, 3)
    )
    agree(lambda x: torch.as_strided_scatter(x.mT, x.reshape(1, 4, 6), (1, 4, 6), (1, 6, 1)), torch.randn(8, 3))
    with pytest.raises(UnsupportedOpError, match="contiguous"):
        agree(lambda x: x.as_strided((3, 4), (2, 1)), torch.randn(8, 3)[:, :2])


def test_as_strided_counts_from_the_start_of_memory() -> None:
    """Of a view, and of values whose axes lie in another order."""
    x = torch.randn(8, 6)
    agree(lambda x: ((x + 1)[1:].as_strided((2,), (1,), 2), (x + 1)[:, 1:].as_strided((3, 4), (2, 1))), x)
    agree(lambda x: torch.as_strided_scatter((x + 1)[:, 1:], torch.zeros(3, 2), (3, 2), (7, 2), 1), x)
    y = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    agree(lambda y: ((y * 2).as_strided((7,), (3,), 1), (y * 2)[:, 1:].as_strided((4, 2), (1, 9))), y)


def test_places_among_boundaries() -> None:
    def places(b: Tensor, x: Tensor) -> tuple[Any, ...]:
        rows, values = b.expand(3, 5).contiguous(), x.expand(3, 5)
        results = torch.searchsorted(b, x), torch.searchsorted(b, 0.5), torch.bucketize(x, b), torch.bucketize(0.3, b)
        order = torch.arange(4, -1, -1).expand(3, 5)
        return *results, torch.searchsorted(b, b, right=True), torch.searchsorted(b, b, side="left", out_int32=True), (
            torch.searchsorted(rows, values[:, :4]), torch.searchsorted(rows.flip(-1), values, sorter=order)
        )  # fmt: skip

    agree(places, torch.rand(5).sort().values, torch.rand(5))
    special = torch.tensor([torch.nan, -torch.inf, torch.inf, 0, 2])
    agree(places, torch.tensor([-torch.inf, -1, 0, 1, torch.inf]), special)


@pytest.mark.parametrize("include", [True, False])
def test_scattered_reductions(include: bool) -> None:
    def reduced(x: Tensor, i: Tensor, s: Tensor) -> list[Tensor]:
        at, kinds = i[:, None].expand_as(s), ("sum", "prod", "mean", "amax", "amin")
        reductions = [x.scatter_reduce(0, at, s, kind, include_self=include) for kind in kinds]
        return reductions + [x.index_reduce(0, i, s, kind, include_self=include) for kind in kinds[1:]]

    agree(reduced, torch.randn(4, 4), torch.tensor([0, 2, 2, 0, 2, 1]), torch.randn(6, 4))


def test_fake_quantization() -> None:
    def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
        scales, zeros = torch.tensor([0.05, 0.1, 0.02]), torch.tensor([0, 3, -2], dtype=torch.int32)
        by_channel = torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -128, 127)
        return torch.fake_quantize_per_tensor_affine(x, 0.05, 2, 0, 255), by_channel

    agree(quantized, 4 * torch.randn(5, 3))
    ties = torch.arange(-9, 9).reshape(-1, 1) / 2
    agree(lambda x: torch.fake_quantize_per_tensor_affine(x, 1.0, 3, -4, 6), ties)


@torch.library.custom_op("ingot_tests::first", mutates_args=())
def first(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("ingot_tests::second", mutates_args=())
def second(x: Tensor) -> Tensor:
    return x.clone()


first.register_fake(torch.empty_like)
second.register_fake(torch.empty_like)


class Refused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return first(x) + second(first(x))


def test_unsupported_ops_are_told_together() -> None:
    with pytest.raises(UnsupportedOpError) as e:
        import_exported(export_module(Refused().eval(), (cube(),)))
    assert len(e.value.ops) == 3
    assert all(part in str(e.value) for part in ("ingot_tests.first", "ingot_tests.second", "test_shapes.py"))


def test_sizes_that_torch_writes_in_two_ways() -> None:
    """Chunks of four as Mamba-2 makes them: what `view` infers for -1 is a quotient, and meets the size itself."""

    def chunked(x: Tensor) -> Tensor:
        n = x.shape[1]
        y = F.pad(x, (0, 0, 0, (4 - n % 4) % 4))
        parts = y.reshape(y.shape[0], -1, 4, y.shape[2])
        return (parts.cumsum(2).reshape(y.shape[0], -1, y.shape[2]) + y)[:, :n]

    net = Function(chunked).eval()
    model = import_exported(export_module(net, (torch.randn(2, 10, 3),), True))
    for n in (4, 7, 13):
        x = torch.randn(3, n, 3)
        close(run(model, x), net(x))


def test_a_product_of_sizes_that_meets_a_number() -> None:
    """Patches of an image beside a table of 16 positions: other images are refused."""
    table = torch.randn(16, 3)

    def embedded(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 8).flatten(2).mT + table

    net = Function(embedded).eval()
    model = import_exported(export_module(net, (torch.randn(2, 3, 32, 32),), True))
    for size in ((32, 32), (64, 16), (39, 33)):
        x = torch.randn(3, 3, *size)
        close(run(model, x), net(x))
    for size in ((40, 40), (16, 16)):
        with pytest.raises(InputError):
            run(model, torch.randn(3, 3, *size))


@pytest.mark.parametrize("narrow", [torch.uint8, torch.bool, torch.bfloat16, torch.int32, torch.complex32])
@pytest.mark.parametrize("wide", [torch.float32, torch.int64, torch.complex64, torch.complex128])
def test_views_of_other_widths(narrow: torch.dtype, wide: torch.dtype) -> None:
    if narrow.itemsize == wide.itemsize and narrow.is_complex:
        return
    x = torch.tensor([[0, 1, 1, 0] * 8] * 2, dtype=torch.uint8)
    agree(lambda x, y: (x.view(wide), y.view(narrow)), x.view(narrow), x.view(wide))


def test_views_of_other_widths_at_open_sizes() -> None:
    def views(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).view(torch.uint8)
        return y, (y + 0)[1:].view(torch.float32)

    spy = Spy()
    compiled = compile_whole(views, backend=spy.backend, dynamic=True)
    for n in (3, 5):
        x = torch.rand(n, n)
        close(compiled(x), views(x))
    assert len(spy.models) == 1
