"""DistributedDataParallel: two processes, each with half of a batch, train as one does with the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, distributed, nn  # noqa: E402
from torch.multiprocessing.spawn import spawn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import ingot  # noqa: E402
from tests.frontends.torch.agree import Spy, breaks  # noqa: E402

pytestmark = pytest.mark.slow
STEPS = 5


class Net(nn.Module):
    """With a forward of its own: behind DistributedDataParallel's breaks dynamo takes up no frame of PyTorch's modules,
    and of a bare Sequential nothing would be compiled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _losses(model: nn.Module, part: slice) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 16, generator=generator)[part]
    y = torch.randint(0, 4, (8,), generator=generator)[part]
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _process(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    spy = Spy(ingot.compile)
    model = torch.compile(DistributedDataParallel(Net()), backend=spy.backend, fullgraph=False)
    losses = _losses(model, slice(4 * rank, 4 * rank + 4))
    # DistributedDataParallel itself stays Python: forward and backward of the module in it are programs
    assert len(spy.models) == 2, breaks()
    distributed.all_reduce(losses)
    if rank == 0:
        torch.save(losses / 2, f"{folder}/losses.pt")
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="PyTorch without torch.distributed")
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    spawn(_process, (str(tmp_path),), nprocs=2)
    got = torch.load(tmp_path / "losses.pt", weights_only=True)
    torch.testing.assert_close(got, _losses(Net(), slice(None)), rtol=1e-5, atol=1e-6)
