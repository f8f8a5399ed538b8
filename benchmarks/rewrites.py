"""What `ingot tune --rewrites --fast-math` gains, model by model: the table of docs/appendix/tuning.md.

python -m benchmarks.rewrites                        the networks of tests/models, the files that onnx ships
python -m benchmarks.rewrites lstm adapter           some of them
python -m benchmarks.rewrites --budget 60 FILE.onnx  a file; --dim NAME=SIZE fixes its sizes
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from ingot.cli.sizes import random_inputs
from ingot.debug.build import build
from ingot.debug.source import Words, open_source, read_graph
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


class Experts(nn.Module):
    """A mixture of experts that all read one value (Ma et al. 2018, MMoE)."""

    def __init__(self, width: int = 256, hidden: int = 96, count: int = 4) -> None:
        super().__init__()
        pairs = [(nn.Linear(width, hidden), nn.Linear(hidden, 64)) for _ in range(count)]
        self.experts = nn.ModuleList(nn.Sequential(a, nn.ReLU(), b, nn.ReLU()) for a, b in pairs)
        self.gate = nn.Linear(width, count)

    def forward(self, x: Tensor) -> Tensor:
        results = torch.stack([expert(x) for expert in self.experts], 1)
        return (torch.softmax(self.gate(x), -1).unsqueeze(-1) * results).sum(1)


class Gated(nn.Module):
    """Gated convolutions with residual and skip connections (van den Oord et al. 2016, WaveNet)."""

    def __init__(self, width: int = 64, layers: int = 6) -> None:
        super().__init__()
        dilated = [[nn.Conv1d(width, width, 2, dilation=2**i, padding=2**i) for i in range(layers)] for _ in range(2)]
        self.filters, self.gates = map(nn.ModuleList, dilated)
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(())
        for f, g, residual, skip in zip(self.filters, self.gates, self.residual, self.skip, strict=True):
            z = (torch.tanh(f(x)) * torch.sigmoid(g(x)))[..., : x.shape[-1]]
            out, x = out + skip(z), x + residual(z)
        return out


def peft_bert() -> nn.Module:
    """A BERT of 2 layers with the adapters of the package peft, of rank 16, not merged."""
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # one of another PyTorch fails at import
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024)
    bert = BertModel(config)
    adapters = LoraConfig(r=16, target_modules=["query", "key", "value", "dense"], init_lora_weights=False)
    return OfEmbeddings(get_peft_model(bert, adapters))


class OfEmbeddings(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(inputs_embeds=x).last_hidden_state


class KernelAttention(nn.Module):
    """Attention without a softmax, of a long sequence: (q k^T) v."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = torch.relu(self.q(x)), torch.relu(self.k(x))
        return (q @ k.transpose(-1, -2)) @ self.v(x)


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "adapter": (Adapted, (128, 512)),
    "factored": (Factored, (128, 512)),
    "kernel attention": (KernelAttention, (1024, 64)),
    "peft bert": (peft_bert, (4, 64, 256)),
    "experts": (Experts, (64, 256)),
    "gated convolutions": (Gated, (1, 64, 512)),
}
OPEN = ", open"  # ends the names of models whose first size is open


def models(names: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    for name in names or [*FAMILIES, *OWN, *(name + OPEN for name in OWN)]:
        if name.endswith(".onnx"):
            yield Path(name).stem, Path(name)
            continue
        torch.manual_seed(0)
        own = name.removesuffix(OPEN)
        if own in OWN:
            make_net, shape = OWN[own]
            net, inputs = make_net().eval(), (torch.randn(shape),)
        else:
            family = FAMILIES[name]
            net, inputs = build_net(name), family.inputs(BATCH, family.lengths[0])
        path = folder / f"{name}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}} if own != name else {}
            torch.onnx.export(net, inputs, path, opset_version=17, dynamo=False, **options)
        yield name, path
    for path in () if names else sorted(SHIPPED.glob("light_*.onnx")):
        name = path.stem.removeprefix("light_")
        yield name, with_weights(path, folder / f"{name}.onnx")


def with_weights(path: Path, out: Path) -> Path:
    """A model whose weights are filled with one value, with random ones instead, which need to be read."""
    model = onnx.load(path)
    shapes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    random = np.random.default_rng(0)
    fills = [n for n in model.graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes]
    for n in fills:
        shape = shapes[n.input[0]].tolist()
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else random.random(shape)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), n.output[0]))
        model.graph.node.remove(n)
    onnx.save(model, out)
    return out


def searched(path: Path, folder: Path, budget: float, threads: int, dims: Sequence[str] = ()) -> Report:
    graph = read_graph(open_source(path, Words(dims=dims)))
    shape = OWN[path.stem.removesuffix(OPEN)][1] if path.stem.endswith(OPEN) else None
    sizes = [f"n={shape[0]}"] if shape else None
    feeds = random_inputs(build(graph, threads=threads, target="null:native").program, graph, sizes)
    feeds = {name: np.asarray(x) for name, x in feeds.items()}
    database = folder / f"{path.stem}.jsonl"
    return find_rewrites(graph, feeds, threads=threads, budget=budget, database=database, fast_math=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--budget", type=float, default=20, metavar="SECONDS", help="of each model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="of files with open sizes")
    options = parser.parse_args()
    print("| model | subgraphs | with cheaper forms | kept | a call | |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        for name, path in models(options.models, Path(made)):
            r = searched(path, Path(made), options.budget, options.threads, options.dim)
            forms = sum(row.forms > 0 for row in r.rows)
            gain = f"{r.gain:.2f}x" if r.rewrites else "-"
            print(
                f"| {name} | {len(r.rows)} | {forms} | {len(r.rewrites)} | {gain} | {'; '.join(r.rewrites)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
