"""The description of a service: its models and options."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.api.language_model import LanguageModel
from ingot.runtime.executor import CompiledModel
from ingot.serving.scheduler import Queueing
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class NamedModel:
    name: str
    version: str
    model: CompiledModel


@dataclass(frozen=True)
class NamedLanguageModel:
    name: str
    model: LanguageModel


@dataclass(frozen=True)
class Service:
    """batch: the size along which requests are joined; None: the leading one that all tensors share; "": requests are
    not joined. body_bytes, seconds: limits of one request. language_models: served by OpenAI's routes. api_key: that of
    all requests; None: no key is needed."""

    models: Sequence[NamedModel]
    host: str
    port: int
    queueing: Queueing
    batch: str | None = None
    body_bytes: int = 64 << 20
    seconds: float = 60.0
    language_models: Sequence[NamedLanguageModel] = ()
    api_key: str | None = None
