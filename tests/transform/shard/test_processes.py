"""Programs and training steps in two processes, as in one."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import ingot
from ingot.runtime import artifact
from ingot.runtime.ranks.current import current
from ingot.support import safetensors
from ingot.support.errors import DeviceError, IngotError, InputError

MLP = """
func.func @main(%x: tensor<?x8xf32> loc("x"), %w: tensor<8x6xf32> loc("w"), %v: tensor<6x4xf32> loc("v"))
    -> tensor<?x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<?x8xf32>, tensor<8x6xf32>) -> tensor<?x6xf32>
  %1 = stablehlo.tanh %0 : tensor<?x6xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
      : (tensor<?x6xf32>, tensor<6x4xf32>) -> tensor<?x4xf32>
  return %2 : tensor<?x4xf32>
}
"""


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal(shape, np.float32) for shape in ((6, 8), (8, 6), (6, 4)))
    return x, w, v


def compiled(**options: Any) -> Any:
    _, w, v = arrays()
    return ingot.compile(MLP, weights={"w": w, "v": v}, threads=2, cache=False, **options)


def tensor_parallel(how: str) -> Any:
    x, _, _ = arrays()
    rank = current().rank
    marks = {"w": ("tp", 1)} if how != "others" or not rank else {"v": ("tp", 1)}
    model = compiled(mesh={"tp": 2}, shard=marks)
    kinds = [step.kernel for step in model.program.steps if step.collective is not None]
    return [model(x[:rows]) for rows in (6, 1, 3)] * 2, kinds, model.program.meta["rank"]


def test_two_processes_give_the_results_of_one() -> None:
    x, _, _ = arrays()
    one = compiled()
    for rank, (results, kinds, place) in enumerate(ingot.launch(tensor_parallel, 2, ("same",), seconds=100)):
        assert (kinds, place) == (["all_reduce"], f"{rank} of 2")
        for got, rows in zip(results, (6, 1, 3) * 2, strict=True):
            np.testing.assert_allclose(got, one(x[:rows]), rtol=1e-5, atol=1e-5)


def test_ranks_with_other_programs_are_refused() -> None:
    with pytest.raises(DeviceError, match="the same collectives on each rank"):
        ingot.launch(tensor_parallel, 2, ("others",), seconds=100)


def test_a_simulated_mesh_takes_and_returns_whole_values() -> None:
    x, _, _ = arrays()
    model = compiled(mesh=ingot.simulate({"dp": 2, "tp": 2}), shard={"w": ("tp", 1), "x": ("dp", 0)})
    np.testing.assert_allclose(model(x), compiled()(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="those of 4 ranks"):
        model.save("x.ingot")


def test_programs_of_other_ranks_are_saved(tmp_path: Any) -> None:
    model = compiled(mesh={"tp": 2}, shard={"w": ("tp", 1)}, rank=1)
    model.save(tmp_path / "1.ingot")
    (step,) = [s for s in artifact.load(tmp_path / "1.ingot").steps if s.collective is not None]
    assert str(step.collective) == "all_reduce sum of 2 devices"
    with pytest.raises(DeviceError, match="that of rank 0 of 1"):
        ingot.load(tmp_path / "1.ingot")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": {"tp": 2}}, "a group of 2 processes"),
        ({"shard": {"w": ("tp", 1)}}, "a mesh, too"),
        ({"mesh": {"tp": 2}, "rank": 2}, "one of the 2 ranks"),
    ],
)
def test_requests_that_do_not_fit(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compiled(**options)


# --- training


def network(name: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The network, a batch, targets and the marks of tensor parallelism."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(12, 32) * 0.1)
            names = {"q": (32, 32), "k": (32, 32), "v": (32, 32), "o": (32, 32), "up": (32, 64), "down": (64, 32)}
            self.blocks = nn.ModuleList(
                nn.ModuleDict(
                    {n: nn.Linear(*size, bias=False) for n, size in names.items()} | {"norm": nn.LayerNorm(32)}
                )
                for _ in range(2)
            )

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            batch, length = ids.shape
            x = self.words(ids) + self.places[:length]
            for b in cast(Any, self.blocks):
                y = b["norm"](x)
                q, k, v = (b[n](y).view(batch, length, 4, 8).transpose(1, 2) for n in "qkv")
                attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + b["o"](attention.transpose(1, 2).reshape(batch, length, 32))
                x = x + b["down"](F.gelu(b["up"](x)))
            return (x @ self.words.weight.T).transpose(1, 2)

    torch.manual_seed(0)
    if name == "mlp":
        net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
        return net, torch.randn(8, 20), torch.randint(0, 10, (8,)), {"0.weight": ("tp", 0)}
    if name == "cnn":
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 10),
        )  # fmt: skip
        return net.train(), torch.randn(8, 3, 12, 12), torch.randint(0, 10, (8,)), {"0.weight": ("tp", 0)}
    ids = torch.randint(0, 50, (4, 12))
    return Gpt(), ids, ids.roll(-1, 1), {f"*.{n}.weight": ("tp", 0) for n in ("q", "k", "v", "up")}


def trained(name: str, mode: str) -> tuple[list[float], dict[str, int], dict[str, np.ndarray]]:
    net, x, y, marks = network(name)
    options: dict[str, Any] = {}
    if mode != "one":
        options = {"mesh": {mode: 2}, "shard": marks if mode == "tp" else None}
    optimizer = ingot.optim.SGD(lr=0.05, momentum=0.9)
    step = ingot.train(net, "cross_entropy", optimizer, (x,), threads=1, **options)
    if mode == "dp":
        rank, half = current().rank, len(x) // 2
        x, y = x[half * rank : half * (rank + 1)], y[half * rank : half * (rank + 1)]
    losses = [float(np.asarray(step(x, y)[0])) for _ in range(4)]
    kinds = [s.kernel for s in step.program.steps if s.collective is not None]
    return losses, {k: kinds.count(k) for k in {*kinds}}, {k: np.asarray(v) for k, v in step.state_dict().items()}


def check(name: str, tp: dict[str, int]) -> None:
    """Data and tensor parallel, two processes train as one does within rounding. tp: its collectives."""
    losses, _, parameters = trained(name, "one")
    for mode in ("dp", "tp"):
        for got, kinds, state in ingot.launch(trained, 2, (name, mode), seconds=200):
            np.testing.assert_allclose(got, losses, rtol=2e-5)
            assert set(kinds) == {"all_reduce"}, kinds
            assert mode == "dp" or kinds == tp
            assert state.keys() == parameters.keys()
            for key, value in parameters.items():
                np.testing.assert_allclose(state[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tp"), [("mlp", {"all_reduce": 1}), ("cnn", {"all_reduce": 1}), ("gpt", {"all_reduce": 8})]
)
def test_two_processes_train_as_one(name: str, tp: dict[str, int]) -> None:
    pytest.importorskip("torch")
    check(name, tp)


def resumed(folder: str, mode: str, first: bool) -> list[float]:
    """Losses of two steps. first: from the start, with a checkpoint behind two more; else from that checkpoint."""
    net, x, y, marks = network("mlp")
    options: dict[str, Any] = {} if mode == "one" else {"mesh": {mode: 2}, "shard": marks if mode == "tp" else None}
    step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(lr=1e-2), (x,), threads=1, **options)
    if mode == "dp":
        half = len(x) // 2 * current().rank
        x, y = x[half : half + len(x) // 2], y[half : half + len(x) // 2]
    if first:
        for _ in range(2):
            step(x, y)
        step.save_checkpoint(f"{folder}/c.safetensors", {"epoch": np.array(3)})
        step.save_weights(f"{folder}/w.safetensors")
        try:
            step.save_checkpoint(f"{folder}/none/c.safetensors")
        except (IngotError, OSError) as error:
            assert (str(error).startswith("rank 0 wrote no file")) == bool(mode != "one" and current().rank)
        else:
            raise AssertionError("a checkpoint in a folder that is not there")
    else:
        step.lr = 7.0
        assert int(step.load_checkpoint(f"{folder}/c.safetensors")["epoch"]) == 3 and step.lr == 1e-2
    return [float(np.asarray(step(x, y)[0])) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["tp", "one"])
def test_a_checkpoint_is_whole_and_is_resumed_on_another_mesh(tmp_path: Any, writer: str) -> None:
    """Written where parameters and moments are split, read without a mesh and where batches are split; and back."""
    pytest.importorskip("torch")
    folder = str(tmp_path)
    if writer == "one":
        expected = resumed(folder, writer, True)
    else:
        expected = ingot.launch(resumed, 2, (folder, writer, True), seconds=200)[0]
    assert {k: v.shape for k, v in safetensors.read(tmp_path / "w.safetensors").items()}["0.weight"] == (64, 20)
    if writer != "one":
        np.testing.assert_allclose(resumed(folder, "one", False), expected, rtol=2e-5)
    for mode in ("dp",) if writer == "tp" else ("tp",):
        for got in ingot.launch(resumed, 2, (folder, mode, False), seconds=200):
            np.testing.assert_allclose(got, expected, rtol=2e-5)
