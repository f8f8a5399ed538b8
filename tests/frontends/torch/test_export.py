"""Export, symbolic sizes, structures of arguments and results, constants, and the errors that users see."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ingot.frontends.torch import export_module, import_exported
from ingot.ir.node import Const
from ingot.support.errors import ImportModelError, InputError, UnsupportedOpError, VerifyError
from tests.frontends.torch.agree import close, run


class Mixer(nn.Module):
    """Sizes as shapes, as factors and as roots; a view with -1; a guard-free slice by a size."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("positions", torch.randn(64, 6))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, length, _ = x.shape
        y = self.linear(x) + self.positions[:length]
        y = y.view(n, length, 2, 3).transpose(1, 2).reshape(n, 2, -1)
        y = y * length / n**0.5 + torch.arange(length * 3)
        if mask is not None:
            y = y.masked_fill(mask.repeat_interleave(3, 1)[:, None], 0.0)
        return torch.cat([y, y[:, :, : length // 2]], 2)


@pytest.mark.parametrize("dynamic", [{"x": {0: "batch", 1: "length"}}, True])
def test_dynamic_sizes(dynamic: Any) -> None:
    net = Mixer().eval()
    model = import_exported(export_module(net, (torch.randn(3, 8, 4),), dynamic))
    for shape in ((1, 2, 4), (5, 11, 4), (3, 8, 4)):
        x = torch.randn(shape)
        close(run(model, x), net(x))


class Positional(nn.Module):
    """Positions that are sizes: a slice from the end by a size, a roll, a middle."""

    def forward(self, x: Tensor, other: Tensor) -> Any:
        return x[:, -other.shape[1] :], x.roll(1, 1), x.median(1)[0], other


def test_one_as_an_example() -> None:
    net, named = Positional().eval(), {"x": {0: "batch", 1: "length"}, "other": {0: "batch", 1: ("part", 1, 8)}}
    model = import_exported(export_module(net, (torch.randn(1, 9), torch.randn(1, 1)), named))
    assert [str(i.type) for i in model.graph.inputs] == ["f32[batch,length]", "f32[batch,part]"]
    for batch, length, part in ((1, 9, 1), (3, 8, 8), (2, 12, 5)):
        x, other = torch.randn(batch, length), torch.randn(batch, part)
        close(run(model, x, other), net(x, other))


class Grid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.eye(9)[0]


def test_an_axis_that_the_model_fixes_is_an_error() -> None:
    with pytest.raises(ImportModelError, match="length"):
        export_module(Grid().eval(), (torch.randn(2, 9),), {"x": {0: "batch", 1: "length"}})


class Reads(nn.Module):
    """A Python float from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.item() + (2 * x.max().item() + 1)


def test_items() -> None:
    net = Reads().eval()
    model = import_exported(export_module(net, (torch.randn(2, 3),), True))
    x = torch.randn(4, 5)
    with torch.no_grad():
        close(run(model, x), net(x))


class Tells(nn.Module):
    def forward(self, x: Tensor) -> tuple[bool | float, Tensor]:
        return (x.sum() > 0).item(), x


def test_a_boolean_item_is_a_result() -> None:
    model = import_exported(export_module(Tells().eval(), (torch.ones(3),)))
    assert run(model, torch.ones(3))[0] is True
    assert run(model, -torch.ones(3))[0] is False


class Compares(nn.Module):
    def forward(self, x: Tensor) -> tuple[bool | float, Tensor]:
        return x.shape[0] * 2 > x.shape[1], x


def test_a_comparison_of_sizes_is_no_result() -> None:
    with pytest.raises(UnsupportedOpError, match="comparison of sizes"):
        import_exported(export_module(Compares().eval(), (torch.ones(3, 4),), True))


class Splits(nn.Module):
    """Sizes that a tensor holds."""

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        return torch.cat([p.cumsum(0) for p in x.split(counts.tolist())])


@pytest.mark.parametrize("counts", [[3, 4], [0, 7], [7, 0]])
def test_sizes_that_a_tensor_holds(counts: list[int]) -> None:
    model = import_exported(export_module(Splits().eval(), (torch.randn(7, 3), torch.tensor([3, 4]))))
    x, sizes = torch.randn(7, 3), torch.tensor(counts)
    torch.testing.assert_close(run(model, x, sizes), Splits()(x, sizes))
    for wrong in ([8, -1], [-1, 8]):
        with pytest.raises(InputError, match=r"size"):
            run(model, x, torch.tensor(wrong))


def test_names_of_dims_and_bounds() -> None:
    spec = {"x": {0: "batch", 1: ("length", 3, 64)}, "mask": {0: "batch", 1: "length"}}
    inputs = {"x": torch.randn(3, 8, 4), "mask": torch.rand(3, 8) > 0.5}
    model = import_exported(export_module(Mixer().eval(), inputs, spec))
    assert [str(i.type) for i in model.graph.inputs] == ["f32[batch,length,4]", "bool[batch,length]"]
    assert model.graph.bounds == (("batch", 1, None), ("length", 3, 64))
    with pytest.raises(InputError):
        run(model, torch.randn(2, 65, 4), torch.rand(2, 65) > 0.5)


def test_arguments_by_position_or_name() -> None:
    net = Mixer().eval()
    x, mask = torch.randn(3, 8, 4), torch.rand(3, 8) > 0.5
    by_name = import_exported(export_module(net, {"x": x, "mask": mask}))
    by_position = import_exported(export_module(net, (x, mask)))
    for model in (by_name, by_position):
        for args, kwargs in (((x, mask), {}), ((x,), {"mask": mask}), ((), {"mask": mask, "x": x})):
            close(run(model, *args, **kwargs), net(x, mask))
        with pytest.raises(InputError, match="'mask': expected a tensor"):
            run(model, x)
    without = import_exported(export_module(net, (x,)))
    close(run(without, x=x), net(x))


@dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    extra: dict[str, Any]


pytree.register_dataclass(Result) if hasattr(pytree, "register_dataclass") else torch.export.register_dataclass(Result)


class Structured(nn.Module):
    def forward(self, batch: dict[str, Tensor], pair: tuple[Tensor, list[Tensor]], count: int) -> Result:
        a, (b,) = pair
        x = batch["x"] + a
        return Result(x, (b, x * count), {"size": x.shape[0], "none": None, "seven": 7, "b": b})


def test_structures() -> None:
    net = Structured().eval()
    args = ({"x": torch.randn(4, 3)}, (torch.randn(4, 3), [torch.randn(2)]), 5)
    dynamic = {"batch": {"x": {0: "n"}}, "pair": ({0: "n"}, [None]), "count": torch.export.Dim.AUTO}
    model = import_exported(export_module(net, args, dynamic))
    assert model.graph.output_names[0] == "logits"
    other = ({"x": torch.randn(6, 3)}, (torch.randn(6, 3), [torch.randn(2)]), 9)
    got, want = run(model, *other), net(*other)
    assert isinstance(got, Result)
    close(got, want)
    fixed = import_exported(export_module(net, args))
    with pytest.raises(InputError, match="count"):
        run(fixed, *other[:2], 6)


def test_constants_share_memory() -> None:
    net = nn.Linear(90, 30).to(torch.bfloat16).eval()
    model = import_exported(export_module(net, (torch.randn(2, 90).to(torch.bfloat16),)))
    pointers = {n.op.value.ctypes.data for n in model.graph.nodes() if isinstance(n.op, Const)}
    assert net.weight.data_ptr() in pointers
    x = torch.randn(2, 90).to(torch.bfloat16)
    close(run(model, x), net(x), 1e-2)


def test_locations_name_the_line_and_the_module() -> None:
    model = import_exported(export_module(Mixer().eval(), (torch.randn(3, 8, 4),)))
    (product,) = [n for n in model.graph.nodes() if n.op.name == "matmul"]
    assert product.loc.startswith("test_export.py:")
    assert product.loc.endswith("(linear)")


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.linear(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.linear(y)
        with torch.autocast("cpu", enabled=False):
            z = self.linear(z.float())
        return torch.cond(z.sum() > 0, lambda z: z + 1, lambda z: z - 1, (z,))


def test_regions_and_conditions() -> None:
    net = Regions().eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        model = import_exported(export_module(net, (x,)))
        close(run(model, x), net(x), 2e-2)
        close(run(model, x - 9), net(x - 9), 2e-2)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


def test_refusals() -> None:
    x = torch.randn(3)
    with pytest.raises(ImportModelError, match=r"torch\.cond"):
        export_module(Branching().eval(), (x,))
    with pytest.raises(InputError, match="got TorchScript"):
        export_module(cast(Any, torch.jit.trace(nn.ReLU(), x)), (x,))
    with pytest.raises(InputError, match="expected example inputs, got none"):
        export_module(nn.ReLU().eval(), None)
    with pytest.raises(InputError, match="forward"):
        export_module(nn.ReLU().eval(), (x, x), dynamic=True)
    with pytest.raises(InputError, match="argument names"):
        export_module(nn.ReLU().eval(), (x,), {"y": {0: "n"}})
    with pytest.raises(InputError, match="names by axis"):
        export_module(nn.ReLU().eval(), (x,), ("n",))
    with pytest.raises(InputError, match="rank 1"):
        export_module(nn.ReLU().eval(), (x,), {"input": {1: "n"}})


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_lengths_stay_dynamic(kind: Callable[..., nn.RNNBase]) -> None:
    net = kind(4, 5, 2, batch_first=True, bidirectional=True).eval()
    model = import_exported(export_module(net, (torch.randn(3, 6, 4),), {"input": {0: "batch", 1: "length"}}))
    for shape in ((1, 1, 4), (2, 9, 4)):
        x = torch.randn(shape)
        with torch.no_grad():
            close(run(model, x), net(x))


def test_recurrent_lengths_stay_dynamic_where_the_program_is_decomposed() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cell = nn.GRU(4, 5, batch_first=True), nn.GRUCell(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.layer(x)
            mask = torch.ones(x.shape[1], x.shape[1]).tril(x.shape[1] - 3)
            return (mask @ states).sum(1) + self.cell(states[:, -1])

    net = Encoder().eval()
    model = import_exported(export_module(net, (torch.randn(3, 6, 4),), {"x": {0: "batch", 1: "length"}}))
    for length in (3, 11):
        x = torch.randn(2, length, 4)
        with torch.no_grad():
            close(run(model, x), net(x))


def test_parameters_are_not_written() -> None:
    weight = nn.Parameter(torch.zeros(3))
    before = weight.detach().numpy().copy()

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight + x).add_(1)

    close(run(import_exported(export_module(Adds().eval(), (torch.ones(3),))), torch.ones(3)), torch.full((3,), 2.0))
    assert np.array_equal(before, weight.detach().numpy())


class Resized(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, scale_factor=self.scale, mode="bilinear")


@pytest.mark.parametrize("scale", [1.5, 0.5, 0.75])
def test_parts_of_dynamic_sizes(scale: float) -> None:
    """int(n * scale), which torch computes in floats."""
    net = Resized(scale).eval()
    model = import_exported(export_module(net, (torch.randn(1, 2, 6, 8),), {"x": {2: "h", 3: "w"}}))
    for size in ((9, 11), (10, 30), (7, 4)):
        x = torch.randn(1, 2, *size)
        close(run(model, x), net(x))


class Cells(nn.Module):
    """As many cells as begin in an image, of a known number of pixels or of a share of them."""

    def forward(self, x: Tensor) -> Tensor:
        cells = torch.arange(math.ceil(x.shape[2] / 4)).repeat_interleave(4)[: x.shape[2]]
        cells = cells + torch.arange(math.trunc((x.shape[2] - 9) / 2) + 9).sum()  # -1.5 becomes -1
        cells = cells + torch.arange(0.5, x.shape[2]) + torch.arange(0.25, x.shape[2] / 2, 0.5)
        return x[..., : math.ceil(x.shape[3] * 0.3)] + cells[: x.shape[2], None]


def test_sizes_rounded_up() -> None:
    """ceil(n / 4), ceil(n * 0.3), ceil((n - 0.5) / 1), ceil((n / 2 - 0.25) / 0.5), which torch computes in floats."""
    net = Cells().eval()
    model = import_exported(export_module(net, (torch.randn(1, 2, 12, 8),), {"x": {2: "h", 3: "w"}}))
    for size in ((9, 11), (10, 30), (6, 4), (64, 40)):
        x = torch.randn(1, 2, *size)
        close(run(model, x), net(x))


class Parts(dict[str, Any]):
    """A container that its library registers without names for its parts."""


pytree.register_pytree_node(
    Parts,
    lambda parts: (list(parts.values()), list(parts)),
    lambda values, keys: Parts(zip(keys, values, strict=True)),
    serialized_type_name="tests.Parts",
)


def test_containers_of_other_libraries() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Parts:
            return Parts(sample=x + 1, rest=(x * 2, x * 3))

    model = import_exported(export_module(Net().eval(), (torch.ones(2),)))
    got = run(model, torch.ones(2))
    assert isinstance(got, Parts) and list(got) == ["sample", "rest"]
    close(got["rest"][1], torch.full((2,), 3.0))
    assert list(model.graph.output_names) == ["sample", "rest_0", "rest_1"]


def test_masks_of_an_encoder() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, norm_first=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[1]
            return self.layers(x, mask=torch.triu(torch.ones(n, n, dtype=torch.bool), 1))

    net = Net().eval()
    model = import_exported(export_module(net, (torch.randn(2, 5, 8),), dynamic={"x": {1: "length"}}))
    x = torch.randn(2, 9, 8)
    with torch.no_grad():
        close(run(model, x), net(x))


def test_a_model_in_training_mode_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """But not one in evaluation mode that the caller has wrapped since, nor one without dropout and norms."""
    net, x = nn.Sequential(nn.Linear(3, 2), nn.Dropout()), torch.zeros(1, 3)
    export_module(net, (x,))
    assert "training mode" in caplog.text
    caplog.clear()
    export_module(nn.Sequential(net.eval()), (x,))
    export_module(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.LSTM(2, 2)), (x,))
    assert "training mode" not in caplog.text


@pytest.mark.parametrize("read", [False, True])
def test_what_torch_infers_of_results_that_are_not_read(read: bool) -> None:
    """May be wrong, as the rank of an LSTM's last states in PyTorch 2.11; of those that are read it is checked."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            y, (h, _) = self.rnn(x)
            return y + h if read else y

    net, x = Net().eval(), torch.randn(5, 2, 3)
    exported = export_module(net, (x,))
    (node,) = (n for n in exported.graph.nodes if "lstm" in str(n.target))
    y, h, c = node.meta["val"]
    node.meta["val"] = (y, h[None], c)
    if read:
        with pytest.raises(VerifyError, match="lstm"):
            import_exported(exported)
    else:
        with torch.no_grad():
            close(run(import_exported(exported), x), net(x))
