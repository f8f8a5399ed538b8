"""Sizes that the program was not compiled for: 0, and what tracing ruled out, have programs of their own."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import ingot
from ingot.driver.recent import LruCache
from ingot.support.errors import InputError, LimitError, SizesError
from ingot.support.log import Log

ONNX = """<ir_version: 8, opset_import: ["" : 18]>
agraph (float[n,k] x) => (float[n] largest, float[n,k] shares, float[a,k] first, float[b,k] second) {
    one = Constant<value: tensor = int64[1] {1}>()
    largest = ReduceMax<keepdims=0>(x, one)
    shares = Softmax<axis=1>(x)
    first, second = Split<axis=0, num_outputs=2>(x)
}"""


@pytest.mark.parametrize("as_file", [False, True])
def test_onnx_sizes_of_0(as_file: bool, tmp_path: Path) -> None:
    model: onnx.ModelProto | Path = onnx.parser.parse_model(ONNX)
    if as_file:
        onnx.save(model, tmp_path / "model.onnx")
        model = tmp_path / "model.onnx"
    compiled = ingot.compile(model)
    assert [r.shape for r in compiled(np.ones((4, 3), np.float32))] == [(4,), (4, 3), (2, 3), (2, 3)]
    for _ in range(2):
        assert [r.shape for r in compiled(np.ones((0, 3), np.float32))] == [(0,), (0, 3), (0, 3), (0, 3)]
    if isinstance(model, Path):
        fresh = ingot.compile(model)
        model.write_bytes(model.read_bytes() + b"\x6a\x00")
        with pytest.raises(InputError, match="files"):
            fresh(np.ones((0, 3), np.float32))


def test_a_size_of_1_that_is_squeezed_away() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> agraph (float[n,k] x) => (float[n] y) { y = Squeeze(x) }"""
    compiled = ingot.compile(onnx.parser.parse_model(text))
    for shape, squeezed in (((4, 3), (4, 3)), ((1, 3), (3,)), ((2, 1), (2,)), ((1, 1), ()), ((1, 5), (5,))):
        x = np.random.default_rng(0).random(shape, np.float32)
        got = compiled(x)
        assert got.shape == squeezed and np.array_equal(got, x.squeeze())


def test_limits_hold_for_what_a_call_compiles() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[5,10] x, int64[1] axes) => (float[m] y) { y = ReduceSum<keepdims=0>(x, axes) }"""
    x, axes = np.ones((5, 10), np.float32), np.array([1])
    assert ingot.compile(onnx.parser.parse_model(text))(x, axes).shape == (5,)
    model = ingot.compile(onnx.parser.parse_model(text), limits=ingot.Limits(elements=20))
    with pytest.raises(LimitError, match="elements=200"):
        model(x, axes)


def test_sizes_that_no_multiple_is() -> None:
    """Lines are filled up to 4 elements: of more, only multiples of 4 are whole rows, and so the program has them."""
    text = """<ir_version: 8, opset_import: ["" : 18]> agraph (float[n] x) => (float[r,c] y) {
        size = Shape(x)
        four = Constant<value: tensor = int64[1] {4}>()
        zero = Constant<value: tensor = int64[1] {0}>()
        rows = Constant<value: tensor = int64[2] {-1, 4}>()
        short = Sub(four, size)
        more = Max(short, zero)
        pads = Concat<axis=0>(zero, more)
        whole = Pad(x, pads)
        y = Reshape(whole, rows)
    }"""
    compiled = ingot.compile(onnx.parser.parse_model(text))
    for n, rows in ((8, 2), (3, 1), (4, 1), (0, 1)):
        assert compiled(np.ones(n, np.float32)).shape == (rows, 4)
    with pytest.raises(SizesError):
        compiled(np.ones(6, np.float32))


@pytest.mark.parametrize("dynamic", [{"n": (1, 9)}, {"x": {0: (2, None)}}])
def test_bounds_that_are_told_rule_zero_out(dynamic: dict) -> None:
    compiled = ingot.compile(onnx.parser.parse_model(ONNX), dynamic=dynamic)
    with pytest.raises(SizesError, match="n >= "):
        compiled(np.ones((0, 3), np.float32))


def test_a_loaded_program_has_none(tmp_path: Path) -> None:
    ingot.compile(onnx.parser.parse_model(ONNX)).save(tmp_path / "model.ingot")
    with pytest.raises(SizesError, match=r"ingot\.compile"):
        ingot.load(tmp_path / "model.ingot")(np.ones((0, 3), np.float32))


def test_pytorch_sizes_of_0(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        """What code that asks for a 0 makes of it, and a state that calls on nothing share with the others."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x, scale=2.0):
            self.calls.add_(1)
            y = self.linear(x) * scale
            if x.shape[0] == 0:
                return {"y": y, "mean": torch.tensor(7.0)}
            return {"y": y, "mean": y.mean(), "softmax": torch.softmax(x, 1)}

    def eager(x):
        with torch.no_grad():
            return net(x)

    net = Net().eval()
    compiled = ingot.compile(net, (torch.randn(4, 5, 8),), dynamic={"x": {0: "batch", 1: "length"}})
    shapes = [(3, 2, 8), (0, 2, 8), (0, 6, 8), (0, 0, 8), (1, 1, 8)]
    with caplog.at_level(logging.INFO, "ingot.other_sizes"):
        for calls, shape in enumerate(shapes, start=1):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), eager(x), equal_nan=True)
            assert compiled.state()["calls"] == calls
    assert [r.message for r in caplog.records if r.name == "ingot.other_sizes"] == [
        "compiled for sizes [0, 2, 8], []",
        "compiled for sizes [0, 0, 8], []",
    ]

    with torch.no_grad():
        compiled = ingot.compile(net, (torch.randn(4, 5, 8),), dynamic=True)
        net.linear.weight.mul_(2)
    with pytest.raises(InputError, match="weights"):
        compiled(torch.randn(0, 5, 8))
    bounded = ingot.compile(net, (torch.randn(4, 5, 8),), dynamic={"x": {0: ("batch", 1, 8)}})
    with pytest.raises(SizesError, match="batch >= 1"):
        bounded(torch.randn(0, 5, 8))


def test_tails_of_any_length() -> None:
    torch = pytest.importorskip("torch")

    class Tails(torch.nn.Module):
        def forward(self, x, y):
            return x[3:] * 2, x[-2:], x[: y.shape[0]], x[y.shape[0] :].sum(0)

    net = Tails()
    compiled = ingot.compile(net, (torch.randn(8), torch.randn(4)), dynamic={"x": {0: "n"}, "y": {0: "m"}})
    for n, m in ((8, 4), (5, 4), (9, 9), (4, 6), (3, 2), (2, 1), (1, 1), (1, 0), (0, 3), (7, 2), (2, 2)):
        call = torch.randn(n), torch.randn(m)
        for got, want in zip(compiled(*call), net(*call), strict=True):
            torch.testing.assert_close(got, want)


def test_a_length_that_a_loop_over_blocks_fixes() -> None:
    """torch settles the length only while it decomposes the writes."""
    torch = pytest.importorskip("torch")

    class Blocks(torch.nn.Module):
        def forward(self, x):
            n, result = x.shape[1], []
            for i in range((n + 3) // 4):
                block = x[:, 4 * i : min(4 * i + 4, n)].clone()
                block[:, 1:].mul_(2)
                result.append(block.cumsum(1))
            return torch.cat(result, 1) + x

    net = Blocks().eval()
    compiled = ingot.compile(net, (torch.randn(2, 8),), dynamic={"x": {0: "batch", 1: "length"}})
    for shape in ((2, 8), (3, 11), (1, 11), (5, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), net(x))


def test_a_count_of_chunks_that_is_traced_as_one() -> None:
    """As Mamba 2 has them: torch writes one chunk as its count in some places and as 1 in others."""
    torch = pytest.importorskip("torch")
    pad = torch.nn.functional.pad

    class States(torch.nn.Module):
        def forward(self, x):
            chunks = pad(x, (0, 0, 0, 0, 0, -x.shape[1] % 8)).reshape(x.shape[0], -1, 8, 2, 3)
            sums = chunks.sum(2)
            states = torch.cat([torch.zeros_like(sums[:, :1]), sums], 1)
            steps = pad(sums[..., 0], (0, 0, 1, 0)).cumsum(1)
            proximity = torch.exp(-(steps[:, :, None] - steps[:, None]).abs())
            carried = torch.einsum("bzch,bzhp->bchp", proximity, states)
            return (chunks + carried[:, :-1, None]).flatten(1, 2)[:, : x.shape[1]]

    net = States().eval()
    compiled = ingot.compile(net, (torch.randn(2, 5, 2, 3),), dynamic=({0: "b", 1: "n"},))
    for shape in ((2, 5), (3, 8), (1, 1), (2, 9), (2, 40)):
        x = torch.randn(*shape, 2, 3)
        torch.testing.assert_close(compiled(x), net(x))


def test_an_exported_program_is_what_it_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def forward(self, x):
            return x.new_zeros(min(x.shape[0], 1)), x.sum(0), x if x.shape[0] else x + 1

    x = torch.randn(4, 3)
    program = torch.export.export(Net(), (x,), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    torch.export.save(program, tmp_path / "net.pt2")
    for model in (program, tmp_path / "net.pt2"):
        results = ingot.compile(model)(x[:0])
        assert [tuple(r.shape) for r in results] == [(0,) if str(program.graph).count("Min") else (1,), (3,), (0, 3)]


def test_the_least_recently_used_goes(caplog: pytest.LogCaptureFixture) -> None:
    sizes: list[str] = []
    cache: LruCache[str, str] = LruCache(2, "letters", Log("letters"))
    for key in "abacab":
        cache.get(key, lambda key=key: sizes.append(key) or key)
    assert sizes == ["a", "b", "c", "b"]
    assert sorted(cache) == ["a", "b"]
    assert [r.message for r in caplog.records if r.name == "letters"] == [
        "more than 2 letters: dropped the least recently used"
    ] * 2
