"""What `ingot tune --rewrites --fast-math` gains, model by model: the table of docs/inside/rewrites.md.

python -m benchmarks.rewrites                        the networks of tests/models, the files that onnx ships
python -m benchmarks.rewrites lstm adapter           some of them
python -m benchmarks.rewrites --budget 60 FILE.onnx  a file of fixed sizes
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from ingot.cli.sizes import random_inputs
from ingot.debug.build import build
from ingot.debug.source import open_source, read_graph
from ingot.tune.rewrites.run import Report, find_rewrites
from tests.models.nets import FAMILIES, build_net

BATCH = 4
SHIPPED = Path(str(onnx.__file__)).parent / "backend" / "test" / "data" / "light"


class Adapted(nn.Module):
    """Linear layers with adapters of low rank beside them, as a fine-tuned model has before they are merged."""

    def __init__(self, width: int = 512, rank: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(rank, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer, down, up in zip(self.layers, self.down, self.up, strict=True):
            x = torch.relu(layer(x) + 2.0 * up(down(x)))
        return x


class Factored(nn.Module):
    """Layers whose weights were factored into two of a rank that is too high to pay."""

    def __init__(self, width: int = 512, rank: int = 384) -> None:
        super().__init__()
        pairs = ((nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)) for _ in range(3))
        self.layers = nn.Sequential(*(m for pair in pairs for m in (*pair, nn.ReLU())))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class KernelAttention(nn.Module):
    """Attention without a softmax, of a long sequence: (q k^T) v."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = torch.relu(self.q(x)), torch.relu(self.k(x))
        return (q @ k.transpose(-1, -2)) @ self.v(x)


OWN = {
    "adapter": (Adapted, (128, 512)),
    "factored": (Factored, (128, 512)),
    "kernel attention": (KernelAttention, (1024, 64)),
}


def models(names: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    for name in names or [*FAMILIES, *OWN]:
        if name.endswith(".onnx"):
            yield Path(name).stem, Path(name)
            continue
        torch.manual_seed(0)
        if name in OWN:
            cls, shape = OWN[name]
            net, inputs = cls().eval(), (torch.randn(shape),)
        else:
            family = FAMILIES[name]
            net, inputs = build_net(name), family.inputs(BATCH, family.lengths[0])
        path = folder / f"{name}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(net, inputs, path, opset_version=17, dynamo=False)
        yield name, path
    for path in () if names else sorted(SHIPPED.glob("light_*.onnx")):
        yield path.stem.removeprefix("light_"), path


def searched(path: Path, folder: Path, budget: float, threads: int) -> Report:
    graph = read_graph(open_source(path))
    feeds = random_inputs(build(graph, threads=threads, target="null:native").program, graph, None)
    feeds = {name: np.asarray(x) for name, x in feeds.items()}
    database = folder / f"{path.stem}.jsonl"
    return find_rewrites(graph, feeds, threads=threads, budget=budget, database=database, fast_math=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--budget", type=float, default=20, metavar="SECONDS", help="of each model")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print("| model | subgraphs | with cheaper forms | kept | a call | |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        for name, path in models(options.models, Path(made)):
            r = searched(path, Path(made), options.budget, options.threads)
            forms = sum(row.forms > 0 for row in r.rows)
            gain = f"{r.gain:.2f}x" if r.rewrites else "-"
            print(
                f"| {name} | {len(r.rows)} | {forms} | {len(r.rewrites)} | {gain} | {'; '.join(r.rewrites)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
