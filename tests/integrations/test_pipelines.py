"""Pipelines of `transformers` with a compiled forward: texts in, what eager PyTorch makes of them out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]

WORDS = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *"the a cat dog sat on mat and ran far away from it all".split()]  # noqa: SIM905
TEXTS = ["the cat sat", "a dog ran far away from it all and the cat"]
BERT = {
    "vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {
    "vocab_size": len(WORDS), "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "pad_token_id": 0,
    "bos_token_id": 3, "eos_token_id": 4,
}  # fmt: skip
SAMPLED = {"max_new_tokens": 6, "do_sample": True, "top_k": 5, "batch_size": 2}
# task: (class, configuration, texts, arguments)
TASKS: dict[str, tuple[str, dict[str, Any], Any, dict[str, Any]]] = {
    "feature-extraction": ("BertModel", BERT, TEXTS, {}),
    "text-generation": ("GPT2LMHeadModel", GPT2, TEXTS, SAMPLED),
    "text-classification": ("BertForSequenceClassification", BERT, TEXTS, {"top_k": None}),
    "fill-mask": ("BertForMaskedLM", BERT, "the [MASK] sat on the mat", {}),
    "token-classification": ("BertForTokenClassification", BERT, TEXTS, {}),
}


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    if "torchvision" not in sys.modules:  # one of another PyTorch fails at import
        monkeypatch.setitem(sys.modules, "torchvision", None)
    return pytest.importorskip("transformers")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _leaves(member)
    else:
        yield value


@pytest.mark.parametrize("task", TASKS)
def test_a_task(task: str, transformers: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    text = tokenizers.Tokenizer(words)
    text.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = {f"{word[1:-1].lower()}_token": word for word in WORDS[:5]}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=text, padding_side="left", **names)
    kind, config, texts, arguments = TASKS[task]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    net = cls(cls.config_class(**config)).eval()
    results: list[list[Any]] = []
    graphs = torch._dynamo.utils.counters["stats"]
    for is_compiled in (False, True):
        if is_compiled:
            net.forward = torch.compile(net.forward, backend="ingot", fullgraph=True)
        torch.manual_seed(1)
        run = transformers.pipeline(task, model=net, tokenizer=tokenizer, device="cpu")
        results.append([*_leaves(run(texts, **arguments))])
    assert graphs["unique_graphs"] > 0
    for expected, got in zip(*results, strict=True):
        assert got == (
            pytest.approx(expected, rel=1e-4, abs=1e-5) if isinstance(expected, float | np.floating) else expected
        )
