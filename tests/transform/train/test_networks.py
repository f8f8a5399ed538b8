"""Whole networks beside eager PyTorch: a CNN on digits, an LSTM on Python's own text."""

from __future__ import annotations

import copy
import this
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim import Optimizer  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Eager PyTorch's threads wait for each other by spinning."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Batches = Iterator[tuple[Tensor, Tensor]]


Eager = Callable[[Any], Optimizer]


def beside_eager(net: nn.Module, batches: Batches, steps: int, ours: Any, theirs: Eager) -> tuple[np.ndarray, Any]:
    """The differences of the losses, and the step."""
    eager = copy.deepcopy(net)
    x, y = next(batches)
    step = ingot.train(net, "cross_entropy", ours, (x,), clip_norm=1.0, threads=1)
    other = theirs(eager.parameters())
    differences = []
    for _ in range(steps):
        loss, _ = step(x, y)
        other.zero_grad()
        want = F.cross_entropy(eager(x), y)
        want.backward()
        nn.utils.clip_grad_norm_(eager.parameters(), 1.0)
        other.step()
        differences.append(float(loss) - want.item())
        x, y = next(batches)
    return np.asarray(differences), step


def test_a_cnn_reads_digits() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    result = datasets.load_digits()
    images = torch.tensor(result.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(result.target)
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=rng)
    train, test = order[:1500], order[1500:]

    def batches() -> Batches:
        while True:
            rows = train[torch.randint(0, len(train), (64,), generator=rng)]
            yield images[rows], labels[rows]

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24 * 16, 10),
    )  # fmt: skip
    ours = ingot.optim.SGD(lr=0.05, momentum=0.9)
    differences, step = beside_eager(net, batches(), 200, ours, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    assert np.abs(differences).max() < 1e-3
    trained = step.trained().eval()
    with torch.no_grad():
        assert (trained(images[test]).argmax(1) == labels[test]).float().mean() >= 0.98


def text_batches(length: int, rows: int) -> tuple[Batches, int]:
    text = "".join(chr((ord(c) - 97 + 13) % 26 + 97) if c.islower() else c for c in this.s)
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    rng = torch.Generator().manual_seed(0)

    def batches() -> Batches:
        while True:
            starts = torch.randint(0, len(codes) - length - 1, (rows,), generator=rng)
            window = torch.stack([codes[s : s + length + 1] for s in starts])
            yield window[:, :-1], window[:, 1:]

    return batches(), len(letters)


class Recurrent(nn.Module):
    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.lstm, self.out = nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, letters)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(ids))[0]).transpose(1, 2)


def test_an_lstm_of_text() -> None:
    batches, letters = text_batches(24, 16)
    torch.manual_seed(0)
    net = Recurrent(letters, 32)
    ours = ingot.optim.AdamW(lr=3e-3)
    differences, step = beside_eager(net, batches, 60, ours, lambda p: torch.optim.AdamW(p, lr=3e-3))
    assert np.abs(differences).max() < 1e-3
    x, y = next(batches)
    assert float(step(x, y)[0]) < 0.85 * np.log(letters)  # what guessing costs


def test_a_causal_transformer() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 20)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
            self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

        def forward(self, ids: Any) -> Any:
            return self.out(self.layer(self.embed(ids), src_mask=self.mask, is_causal=True)).transpose(1, 2)

    torch.manual_seed(0)
    net, (x, y) = Decoder(), torch.randint(0, 20, (2, 4, 8))
    pair = ingot.optim.AdamW(lr=1e-3), lambda p: torch.optim.AdamW(p, lr=1e-3)
    differences, _ = beside_eager(net, iter([(x, y)] * 11), 10, *pair)
    assert np.abs(differences).max() < 1e-5


class UNet(nn.Module):
    """Down by a pool, up by a transposed convolution, with a way across and norms of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU())
        self.low = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.up, self.out = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        return self.out(torch.cat([self.up(self.low(F.max_pool2d(high, 2))), high], 1))


def test_a_unet_names_pixels() -> None:
    torch.manual_seed(0)
    batch = torch.randn(2, 2, 10, 12), torch.randint(0, 3, (2, 10, 12))
    ours, theirs = ingot.optim.SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)
    differences, _ = beside_eager(UNet().train(), iter([batch] * 21), 20, ours, theirs)
    assert np.abs(differences).max() < 1e-5


class BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, 1, bidirectional=True, batch_first=True)
        self.gru, self.out = nn.GRU(12, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.lstm(x)[0])[0][:, -1])


def test_an_onnx_file_with_recurrent_layers_of_open_length(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    torch.manual_seed(0)
    net, y = BothWays(), torch.randint(0, 4, (6,))
    longest, time = torch.randn(6, 7, 5), {"x": {1: "time"}}
    torch.onnx.export(net, (longest,), str(tmp_path / "m.onnx"), dynamo=False, input_names=["x"], dynamic_axes=time)
    step = ingot.train(tmp_path / "m.onnx", "cross_entropy", ingot.optim.SGD(lr=0.1, momentum=0.9), threads=1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for i in range(20):
        x = longest[:, : 1 + 3 * i % 7]
        optimizer.zero_grad()
        want = F.cross_entropy(net(x), y)
        want.backward()
        optimizer.step()
        assert float(step(x.numpy(), y.numpy())[0]) == pytest.approx(want.item(), abs=1e-5)


def test_a_schedule_and_averaged_weights() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)), torch.randn(8, 6), torch.arange(8) % 3
    step = ingot.train(copy.deepcopy(net), "cross_entropy", ingot.optim.SGD(lr=0.1), (x,), threads=1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, 20, cycle_momentum=False)
    ours, theirs = (
        torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for m in (net, net)
    )
    for _ in range(20):
        rate = optimizer.param_groups[0]["lr"]
        optimizer.zero_grad()
        want = F.cross_entropy(net(x), y)
        want.backward()
        optimizer.step()
        schedule.step()
        assert float(step(x, y, lr=rate)[0]) == pytest.approx(want.item(), abs=1e-6)
        ours.update_parameters(step.trained())
        theirs.update_parameters(net)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)
