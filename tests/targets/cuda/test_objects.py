from __future__ import annotations

import pytest

import ingot
from ingot.support.errors import InputError
from ingot.targets.cuda import objects
from tests.debug import models


def test_without_triton_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    objects._triton.cache_clear()
    monkeypatch.setattr(objects, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"the package triton.*ingot-compiler\[cuda\]"):
        ingot.compile(models.classifier(), target="cuda:sm_90a", cache=False)
