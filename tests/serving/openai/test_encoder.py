"""An encoder behind OpenAI's routes: it embeds, and says that it generates nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("uvicorn")
openai = pytest.importorskip("openai")

import ingot  # noqa: E402
from ingot.serving.openai.model import ServedLanguageModel  # noqa: E402
from tests.language.models import files, model  # noqa: E402
from tests.serving.openai.server import client, served  # noqa: E402


def test_an_encoder_embeds_and_generates_nothing(tmp_path: Path):
    files(model("bert", "BertModel", {"type_vocab_size": 2, "num_key_value_heads": 4}), tmp_path)
    lm = ingot.LanguageModel(tmp_path, threads=1, sequences=2)
    ids = [[3, 4, 5], [7]]
    with served([ServedLanguageModel("bert", lm)]) as url, client(url) as api:
        response = api.embeddings.create(model="bert", input=ids)
        np.testing.assert_array_equal(np.array([d.embedding for d in response.data], np.float32), lm.embed(ids))
        with pytest.raises(openai.BadRequestError, match="an encoder: it has no next token"):
            api.completions.create(model="bert", prompt=[3, 4])
        with pytest.raises(openai.BadRequestError, match="from 0 to"):
            api.embeddings.create(model="bert", input=[3, 100_000])
