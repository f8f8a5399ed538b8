"""Models of `transformers` as oracles: text models, which do without torchvision, whether that is fit or not."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    if "torchvision" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torchvision", None)
