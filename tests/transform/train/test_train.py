"""ingot.train: steps beside the frameworks' own, what is kept, what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.support.errors import InputError, UnsupportedOpError

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim import Optimizer  # noqa: E402

optim = ingot.optim


def mlp(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), *layers, nn.Linear(9, 4))


def batch(rows: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(rows, 6, generator=rng), torch.randint(0, 4, (rows,), generator=rng)


class EagerLion(Optimizer):
    """By the paper's program 1."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = first * m + (1 - first) * p.grad
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * c.sign())
                m.mul_(second).add_(p.grad, alpha=1 - second)


PAIRS: list[tuple[Any, Callable[[nn.Module], Optimizer]]] = [
    (
        optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda n: torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    (optim.Adam(lr=0.01, weight_decay=0.1), lambda n: torch.optim.Adam(n.parameters(), lr=0.01, weight_decay=0.1)),
    (
        optim.AdamW(lr=0.01, weight_decay=0.1, groups=(optim.Group("*.bias", lr=0.5, weight_decay=0),)),
        lambda n: torch.optim.AdamW(
            [
                {"params": [p for k, p in n.named_parameters() if "bias" in k], "weight_decay": 0, "lr": 0.005},
                {"params": [p for k, p in n.named_parameters() if "bias" not in k], "weight_decay": 0.1},
            ],
            lr=0.01,
        ),
    ),
    (
        optim.Lion(lr=0.01, betas=(0.9, 0.95), weight_decay=0.1),
        lambda n: EagerLion(n.parameters(), 0.01, (0.9, 0.95), 0.1),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda v: type(v).__name__)
def test_optimizers_beside_torch(ours: Any, theirs: Callable[[nn.Module], Optimizer]) -> None:
    """With clipping by norm, and an update every other call."""
    net, (x, y) = mlp(nn.BatchNorm1d(9)), batch()
    eager = copy.deepcopy(net)
    other = theirs(eager)
    step = ingot.train(net, "cross_entropy", ours, (x,), clip_norm=0.5, accumulate=2, threads=1)
    for iteration in range(6):
        part = x + iteration
        loss, measured = step(part, y)
        want = F.cross_entropy(eager(part), y)
        (want / 2).backward()
        assert float(loss) == pytest.approx(want.item(), rel=1e-5)
        if iteration % 2:
            norm = nn.utils.clip_grad_norm_(eager.parameters(), 0.5)
            assert float(measured["grad_norm"]) == pytest.approx(norm.item(), rel=1e-4)
            other.step()
            other.zero_grad()
    for name, value in eager.state_dict().items():
        np.testing.assert_allclose(np.asarray(step.state_dict()[name]), value.numpy(), atol=2e-6, rtol=1e-5)


def test_goes_on_from_a_checkpoint_and_a_file_with_the_same_bits(tmp_path: Path) -> None:
    net, (x, y) = mlp(nn.Dropout(0.5)), batch()
    options = {"clip_value": 0.1, "seed": 3, "threads": 1}
    step = ingot.train(net, "cross_entropy", optim.AdamW(), (x,), **options)  # type: ignore[arg-type]
    resumed = ingot.train(net, "cross_entropy", optim.AdamW(), (x,), **options)  # type: ignore[arg-type]
    losses = [float(step(x, y)[0]) for _ in range(3)]
    assert len(set(losses)) == 3 and losses == [float(resumed(x, y)[0]) for _ in range(3)]
    step.lr = 0.02
    step.save_checkpoint(tmp_path / "c.safetensors")
    step.save(tmp_path / "s.ingot")
    want = [float(step(x, y)[0]) for _ in range(3)]
    resumed.load_checkpoint(tmp_path / "c.safetensors")
    assert [float(resumed(x, y)[0]) for _ in range(3)] == want
    loaded: Any = ingot.load(tmp_path / "s.ingot")
    assert [float(loaded(x, y)[0]) for _ in range(3)] == want
    for name, value in loaded.state().items():
        assert value.tobytes() == step.state()[name].tobytes()
    step.save_weights(tmp_path / "w.safetensors")
    other = ingot.train(mlp(), "cross_entropy", optim.SGD(), (x,), threads=1)
    with pytest.raises(InputError, match="state of this step"):
        other.load_checkpoint(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match="save_checkpoint"):
        other.load_checkpoint(tmp_path / "w.safetensors")
    trained = step.trained()
    assert trained is net
    np.testing.assert_array_equal(net[0].weight.detach().numpy(), step.state_dict()["0.weight"])  # type: ignore[union-attr]


def test_a_function_as_loss_open_sizes_and_tied_and_frozen_parameters() -> None:
    """The row of padding learns from the scores alone, others by how often they come."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 6, padding_idx=2, scale_grad_by_freq=True)
            self.mix = nn.Linear(6, 6)
            self.out = nn.Linear(6, 7, bias=False)
            self.out.weight = self.embed.weight
            self.mix.bias.requires_grad_(False)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.mix(self.embed(ids)).relu())

    torch.manual_seed(0)
    net = Tied()
    eager = copy.deepcopy(net)

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), y.flatten(), label_smoothing=0.1)

    ids = torch.randint(0, 7, (3, 5))
    axes = {0: "batch", 1: "length"}
    step = ingot.train(net, loss, optim.SGD(lr=0.5), (ids,), (ids,), dynamic={"ids": axes, "target": axes}, threads=1)
    assert step.training.parameters == ("embed.weight", "mix.weight")
    other = torch.optim.SGD(eager.parameters(), lr=0.5)
    for rows, columns in ((3, 5), (2, 4), (1, 6)):
        x, y = torch.randint(0, 7, (2, rows, columns))
        other.zero_grad()
        want = loss(eager(x), y)
        want.backward()
        other.step()
        assert float(step(x, y)[0]) == pytest.approx(want.item(), rel=1e-5)
    embedded = np.asarray(step.state_dict()["embed.weight"])
    np.testing.assert_allclose(embedded, eager.embed.weight.detach().numpy(), atol=1e-6)


def test_the_rate_of_parameters_in_float64_is_one() -> None:
    """0.01 as a float32 is off by 2e-8 of it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    other, x, y = copy.deepcopy(net), torch.randn(6, 5).double(), torch.randint(0, 3, (6,))
    step = ingot.train(net, "cross_entropy", optim.SGD(lr=0.01), (x,), threads=1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    for rate in (0.01, 0.03):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        F.cross_entropy(other(x), y).backward()
        optimizer.step()
        step(x, y, lr=rate)
    assert step.first_nan(x, y) is None
    step.trained()
    for got, want in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


def test_layers_of_other_types_go_back() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4).bfloat16(), nn.Linear(4, 2).double())
    other, x = copy.deepcopy(net), batch()[0]

    def loss(net: Any, x: Tensor) -> Tensor:
        return net[1](net[0](x.bfloat16()).double()).square().mean()

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return loss(self.net, x)

    step = ingot.train(Whole(), None, optim.SGD(lr=0.5), (x,), threads=1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
    loss(other, x).backward()
    optimizer.step()
    step(x)
    step.trained()
    for got, want in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)


def test_a_loss_whose_target_must_not_be_differentiated() -> None:
    net, (x, labels) = mlp(), batch()
    y = 2.0 * F.one_hot(labels, 4) - 1
    want = F.soft_margin_loss(net(x), y)
    step = ingot.train(net, F.soft_margin_loss, optim.SGD(), (x,), (y,), threads=1)
    assert float(step(x, y)[0]) == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_learns_as_float32_does(precision: str) -> None:
    net, (x, y) = mlp(), batch(64)
    plain = ingot.train(net, "cross_entropy", optim.AdamW(lr=0.02), (x,), threads=1)
    mixed = ingot.train(net, "cross_entropy", optim.AdamW(lr=0.02), (x,), precision=precision, threads=1)
    want, got = [[float(step(x, y)[0]) for _ in range(60)][-1] for step in (plain, mixed)]
    assert got == pytest.approx(want, abs=0.03) and got < 1.0


class OnlyAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor) -> Tensor:
        q = x * self.scale
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_attention_takes_operands_of_the_precision() -> None:
    torch.manual_seed(0)
    net, x, y = OnlyAttention(), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    losses: dict[str, list[float]] = {}
    for precision in ("float32", "bfloat16"):
        step = ingot.train(copy.deepcopy(net), "mse", optim.SGD(lr=0.5), (x,), precision=precision, threads=1)
        losses[precision] = [float(step(x, y)[0]) for _ in range(5)]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=1e-2)
    assert losses["bfloat16"][0] != losses["float32"][0]


def test_an_overflow_in_float16_is_left_out() -> None:
    net, (x, _) = mlp(), batch()
    step = ingot.train(net, "mse", optim.SGD(lr=0.1, momentum=0.9), (x,), precision="float16", threads=1)
    before = step.state()
    _, measured = step(x, torch.full((5, 4), 1e30))
    after = step.state()
    assert float(measured["loss_scale"]) == 65536 and float(after["loss scale"]) == 32768
    for name in (*step.training.parameters, "momentum:0.weight", "updates"):
        np.testing.assert_array_equal(before[name], after[name])


def test_fewer_calls_of_an_update_behind_a_checkpoint_among_more(tmp_path: Path) -> None:
    """Those so far and the next make one update, by their mean."""
    net, (x, y) = mlp(), batch()
    eager = copy.deepcopy(net)
    first, then = (ingot.train(net, "cross_entropy", optim.SGD(lr=0.1), (x,), accumulate=k, threads=1) for k in (4, 2))
    for _ in range(2):
        first(x, y)
    first.save_checkpoint(tmp_path / "c.safetensors")
    then.load_checkpoint(tmp_path / "c.safetensors")
    other = torch.optim.SGD(eager.parameters(), lr=0.1)
    for part in (x, x + 1):
        (F.cross_entropy(eager(part), y) * (2 if part is x else 1) / 3).backward()
    other.step()
    then(x + 1, y)
    for name, value in eager.state_dict().items():
        np.testing.assert_allclose(np.asarray(then.state_dict()[name]), value.numpy(), atol=1e-6, rtol=1e-5)
    other.zero_grad()
    for part in (x, x + 1):
        (F.cross_entropy(eager(part), y) / 2).backward()
        then(part, y)
    other.step()
    for name, value in eager.state_dict().items():
        np.testing.assert_allclose(np.asarray(then.state_dict()[name]), value.numpy(), atol=1e-6, rtol=1e-5)


def test_an_overflow_among_accumulated_calls_halves_the_scale_once() -> None:
    net, (x, y) = mlp(), batch()
    sgd = optim.SGD(lr=0.1)
    step = ingot.train(net, "cross_entropy", sgd, (x,), precision="float16", accumulate=3, threads=1)
    scales = [float(step(x * (1e30 if i == 1 else 1), y)[1]["loss_scale"]) for i in range(7)]
    assert scales == [65536.0] * 3 + [32768.0] * 4
    assert step.state()["updates"] == 1


def test_bad_input_is_told() -> None:
    net, (x, y) = mlp(), batch()
    good, data = optim.SGD(), {"example_inputs": (x,), "example_targets": (y,)}
    group = optim.Group("0.bais", weight_decay=0)
    facts: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": "adam"}, r"of ingot.optim: SGD\(\)"),
        ({"optimizer": optim.AdamW}, r"AdamW\(\)"),
        ({"loss": "entropy"}, "cross_entropy"),
        ({"loss": 3}, "a name, a function"),
        ({"loss": lambda a, b: F.cross_entropy(a, b, reduction="none")}, "a float scalar"),
        ({"loss": lambda a, b: (F.cross_entropy(a, b), a)}, "got a tuple"),
        ({"loss": lambda a, b: None}, "got a NoneType"),
        ({"loss": lambda a, b: F.cross_entropy(a, b).item()}, "loss: expected a float scalar tensor"),
        ({"loss": lambda a, b: F.cross_entropy(a.detach(), b)}, "depends on a parameter"),
        ({"loss": F.cross_entropy, "example_targets": ()}, "example_targets"),
        ({"loss": "mse"}, "target of mse"),
        ({"metrics": "acuracy"}, "got acuracy"),
        ({"trainable": ["2.weight", "0.wieght"]}, "a pattern of 0.weight, .*got '0.wieght'"),
        ({"trainable": []}, "a pattern of names"),
        ({"optimizer": optim.SGD(groups=(group,))}, "groups: expected a pattern of 0.bias, .*got '0.bais'"),
        ({"accumulate": 1.5}, "whole number"),
        ({"clip_norm": "1"}, "a number above 0"),
        ({"clip_value": float("nan")}, "a number above 0"),
        ({"memory": float("inf")}, "a share above 0"),
        ({"memory": "0.5"}, "a share above 0"),
        ({"seed": 1.5}, "whole number"),
    ]
    for wrong, words in facts:
        with pytest.raises(InputError, match=words):
            ingot.train(net, **{"loss": "cross_entropy", "optimizer": good, **data, **wrong})
    for make, words in (
        (lambda: optim.SGD(lr="x"), "finite number"),  # type: ignore[arg-type]
        (lambda: optim.SGD(lr=float("inf")), "finite number"),
        (lambda: optim.Adam(betas=0.9), "two numbers"),  # type: ignore[arg-type]
        (lambda: optim.Lion(betas=(0.9, 1.0)), "two numbers"),
        (lambda: optim.SGD(groups=("*.bias",)), r"Group\(pattern"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=words):
            make()
    with pytest.raises(InputError, match=r"an nn\.Module"):
        ingot.train(nn.Linear, "mse", good, (x,))
    net.register_parameter("table", nn.Parameter(torch.arange(3), requires_grad=False))
    with pytest.raises(InputError, match="floats"):
        ingot.train(net, "mse", optim.SGD(), (x,), trainable=["table"])
    step = ingot.train(net, "cross_entropy", optim.SGD(), (x,), threads=1)
    before = step.state_dict()["0.weight"]
    for arguments, words in (
        ((x[:3], y), "axis 0: expected 5"),
        ((x, y[:3]), "target"),
        ((x, y.float()), "target"),
        ((x,), "followed by a target"),
    ):
        with pytest.raises(InputError, match=words):
            step(*arguments)
    for rate in (-1.0, float("nan"), "fast", [0.1]):
        with pytest.raises(InputError, match="lr: expected a finite number"):
            step(x, y, lr=rate)
        with pytest.raises(InputError, match="lr: expected a finite number"):
            step.lr = rate
    np.testing.assert_array_equal(before, step.state_dict()["0.weight"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="value_and_grad"):
        ingot.train("module {\n}", "mse", optim.SGD())


def test_the_first_nan_is_named() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(x).sqrt()

    torch.manual_seed(0)
    net, (x, y) = Root(), batch()
    step = ingot.train(net, "cross_entropy", optim.SGD(), (x,), skip_nonfinite=True, threads=1)
    assert np.isnan(float(step(x, y)[0]))
    assert "sqrt" in (step.first_nan(x, y) or "")
    fine = ingot.train(mlp(), "cross_entropy", optim.SGD(), (x,), threads=1)
    assert fine.first_nan(x, y) is None
    assert "input" in (fine.first_nan(x * float("nan"), y) or "")


def test_ops_without_a_rule_are_named() -> None:
    class Values(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.eigvals(self.line(x)[:4]).real

    with pytest.raises(UnsupportedOpError, match="no reverse rule"):
        ingot.train(Values(), lambda e, y: e.sum(), optim.SGD(), (batch()[0],), (batch()[1],))


def test_what_the_loss_does_not_read_stays_and_all_buffers_go_back() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.other = nn.Linear(6, 4), nn.Linear(6, 4)
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.calls += 1
            return self.line(x), self.other(x)

    net = Partly()
    before = net.other.weight.detach().clone()
    step = ingot.train(
        net,
        lambda outputs, y: outputs[0].square().mean(),
        optim.AdamW(weight_decay=0.5),
        (batch()[0],),
        (batch()[1],),
        threads=1,
    )
    step(*batch())
    step.trained()
    assert torch.equal(net.other.weight, before)
    assert net.calls == 1
    with pytest.raises(InputError, match="depends on a parameter"):
        ingot.train(net, lambda outputs, y: outputs[0].detach().mean(), optim.SGD(), (batch()[0],), (batch()[1],))


def test_an_onnx_file_trains_and_goes_back(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> m (float[n,3,5] x) => (float[n,4] scores)'
        "<float[6,3,3] w, float[6] scale, float[6] shift, float[6] mean, float[6] var, float[4,6] head, float half>"
        "{ a = Conv (x, w) b = BatchNormalization <momentum = 0.75> (a, scale, shift, mean, var) c = Relu (b)"
        " d = ReduceMean <keepdims = 0> (c, two) e = Mul (d, half) scores = Gemm <transB = 1> (e, head) }".replace(
            "two", "axes"
        ).replace("float half>", "float half, int64[1] axes = {2}>")
    )
    rng = np.random.default_rng(0)
    sizes = {"w": (6, 3, 3), "scale": (6,), "shift": (6,), "mean": (6,), "var": (6,), "head": (4, 6), "half": ()}
    first = {k: rng.uniform(0.5, 1, s).astype(np.float32) for k, s in sizes.items()}
    axes_initializers = [t for t in model.graph.initializer if t.name == "axes"]
    model.graph.ClearField("initializer")
    model.graph.initializer.extend(
        [*axes_initializers, *(onnx.numpy_helper.from_array(a, k) for k, a in first.items())]
    )
    onnx.save(model, tmp_path / "m.onnx")
    step = ingot.train(tmp_path / "m.onnx", "cross_entropy", optim.SGD(lr=0.5), threads=1)
    assert set(step.training.parameters) == {"w", "scale", "shift", "head"}
    assert set(step.training.buffers) == {"mean", "var"}
    leaves = {k: torch.tensor(a, requires_grad=k in step.training.parameters) for k, a in first.items()}
    for n in (2, 7):
        x, y = rng.standard_normal((n, 3, 5)).astype(np.float32), rng.integers(0, 4, n)
        h = F.conv1d(torch.tensor(x), leaves["w"])
        mean, var = h.detach().mean((0, 2)), h.detach().var((0, 2), correction=0)  # ONNX keeps the biased variance
        h = F.batch_norm(h, None, None, leaves["scale"], leaves["shift"], True)
        want = F.cross_entropy((h.relu().mean(2) * leaves["half"]) @ leaves["head"].T, torch.tensor(y))
        want.backward()
        assert float(step(x, target=y)[0]) == pytest.approx(want.item(), rel=1e-5)
        with torch.no_grad():
            for old in leaves.values():
                if old.grad is not None:
                    old -= 0.5 * old.grad
                    old.grad = None
            leaves["mean"] = leaves["mean"] * 0.75 + mean * 0.25
            leaves["var"] = leaves["var"] * 0.75 + var * 0.25
    trained_model = step.trained()
    onnx.checker.check_model(trained_model)
    for t in trained_model.graph.initializer:
        if t.name in leaves:
            np.testing.assert_allclose(onnx.numpy_helper.to_array(t), leaves[t.name].detach().numpy(), atol=2e-6)


def test_a_jax_function_trains_its_tree() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def net(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["a"]["w"] + p["a"]["b"]) @ p["out"]

    def loss(scores: Any, y: Any) -> Any:
        return -jax.nn.log_softmax(scores)[jnp.arange(len(y)), y].mean()

    rng = np.random.default_rng(0)
    p = {"a": {"w": rng.standard_normal((6, 5)), "b": np.zeros(5)}, "out": rng.standard_normal((5, 4))}
    p = jax.tree_util.tree_map(lambda a: a.astype(np.float32), p)
    x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, 4, 8).astype(np.int32)
    for data in (loss, "cross_entropy"):
        step = ingot.train(net, data, optim.SGD(lr=0.3), (p, x), (y,), threads=1)
        want = p
        for _ in range(3):
            value, g = jax.value_and_grad(lambda q: loss(net(q, x), y))(want)
            want = jax.tree_util.tree_map(lambda a, b: a - 0.3 * b, want, g)
            assert float(step(x, y)[0]) == pytest.approx(float(value), rel=1e-5)
        trained = step.trained()
        assert jax.tree_util.tree_structure(trained) == jax.tree_util.tree_structure(p)
        jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), trained, want)
    frozen = ingot.train(net, "cross_entropy", optim.SGD(lr=0.3), (p, x), (y,), trainable=["*'out'*"], threads=1)
    assert frozen.training.parameters == ("['out']",)
    exact = ingot.train(net, "cross_entropy", optim.SGD(lr=0.3), (p, x), (y,), trainable=["['out']"], threads=1)
    assert exact.training.parameters == frozen.training.parameters
    for wrong, words in ((lambda s, y: 1.0, "got a float"), (lambda s, y: (s.sum(), s), "got a tuple")):
        with pytest.raises(InputError, match=words):
            ingot.train(net, wrong, optim.SGD(), (p, x), (y,))


def test_leaves_and_names_of_a_jax_function_as_they_come() -> None:
    """Numbers of Python and numpy in JAX's types, functions among the leaves, arguments with any name."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def net(p: Any, target: Any) -> Any:
        return p["act"](target @ p["w"]) * p["scale"]

    rng = np.random.default_rng(0)
    p = {"w": rng.standard_normal((6, 4)), "scale": 0.5, "act": jnp.tanh, "name": "net"}
    x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)
    step = ingot.train(net, lambda a, b: ((a - b) ** 2).mean(), optim.SGD(lr=0.1), (p, x), (y,), threads=1)
    want = {"w": jnp.asarray(p["w"]), "scale": jnp.asarray(0.5)}
    for _ in range(3):
        value, g = jax.value_and_grad(lambda q: ((net({**p, **q}, x) - y) ** 2).mean())(want)
        want = {k: a - 0.1 * g[k] for k, a in want.items()}
        assert float(step(x, y)[0]) == pytest.approx(float(value), rel=1e-5)
    trained = step.trained()
    assert trained["act"] is p["act"]
    for k, a in want.items():
        np.testing.assert_allclose(trained[k], a, atol=1e-6)
        assert trained[k].dtype == np.float32
    step(x * np.nan, y)
    assert step.first_nan(x, y) == "input \"['scale']\" : f32[]"
