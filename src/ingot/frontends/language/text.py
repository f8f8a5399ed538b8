"""The text settings of a saved model, as JSON: tokenizer, chat templates, sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ingot.frontends.huggingface import Folder
from ingot.frontends.huggingface.folder import read_json
from ingot.language.settings import Settings
from ingot.language.text.tokenizer import Tokenizer, ends_of, special_of
from ingot.language.text.vocabulary import has_vocabulary
from ingot.support.errors import ImportModelError
from ingot.support.files import open_regular

_MAX_TOKENIZER_BYTES = 64 << 20  # bytes of a tokenizer.json
_SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}  # as GGUF names them


def text_of_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    s = Settings(metadata, "GGUF metadata")
    key = "tokenizer.chat_template"
    templates = {"default": s.text(key)} if s.get(key) is not None else {}
    templates |= {k.removeprefix(f"{key}."): s.text(k) for k in metadata if k.startswith(f"{key}.")}
    prefix = "general.sampling."
    sampling = {name: s.number(prefix + old) for name, old in _SAMPLING.items() if s.get(prefix + old) is not None}
    tokenizer = _tokenizer(lambda: Tokenizer.from_metadata(metadata)) if has_vocabulary(metadata) else {}
    end = "tokenizer.ggml.eos_token_id"
    ends = [] if s.get(end) is None else [s.count(end, least=0)]
    return {"ends": ends, **tokenizer, "templates": templates, "sampling": _with_integer_top_k(sampling)}


def text_of_folder(folder: Folder) -> dict[str, Any]:
    path = folder.path
    config, generation = (json_of(path / f"{name}_config.json") for name in ("tokenizer", "generation"))
    templates: dict[str, str] = {}
    template = config.get("chat_template")
    if isinstance(template, str):
        templates["default"] = template
    elif isinstance(template, list):
        templates |= {
            t["name"]: t["template"] for t in template if isinstance(t, dict) and {"name", "template"} <= t.keys()
        }
    if (path / "chat_template.jinja").is_file():
        templates["default"] = _read(path / "chat_template.jinja")
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = _read(file)
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise ImportModelError(
            "chat_template", expected="texts", got="others", where=str(path / "tokenizer_config.json")
        )
    s = Settings(generation, "generation_config.json")
    sampling = {}
    if s.flag("do_sample"):
        names = (*_SAMPLING, "repetition_penalty")
        sampling = {name: s.number(name) for name in names if s.get(name) is not None}
    special, ends = special_of(config), ends_of(generation, folder.config)
    tokenizer: dict[str, Any] = {"ends": ends}
    if (path / "tokenizer.json").is_file():
        tokenizer |= _tokenizer(lambda: Tokenizer.from_json(_read(path / "tokenizer.json"), special, ends))
    elif (path / "tokenizer.model").is_file():
        fix = f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r}) writes it"
        tokenizer["refused"] = f"the folder has no tokenizer.json; {fix}"
    return {**tokenizer, "templates": templates, "sampling": _with_integer_top_k(sampling)}


def _tokenizer(open_: Callable[[], Tokenizer]) -> dict[str, Any]:
    """A model without a tokenizer still takes ids: the reason is reported where text is used."""
    try:
        tokenizer = open_()
    except ImportModelError as error:
        return {"refused": str(error)}
    return {"tokenizer": tokenizer.to_json(), "special": dict(tokenizer.special), "ends": list(tokenizer.end_ids)}


def _with_integer_top_k(sampling: Mapping[str, float]) -> dict[str, float]:
    return {name: int(value) if name == "top_k" else value for name, value in sampling.items()}


def json_of(path: Path) -> dict[str, Any]:
    return read_json(path, _MAX_TOKENIZER_BYTES) if path.is_file() else {}


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            text = file.read(_MAX_TOKENIZER_BYTES + 1)
        if len(text) > _MAX_TOKENIZER_BYTES:
            raise ImportModelError(
                path.name, expected=f"at most {_MAX_TOKENIZER_BYTES} bytes", got="more", where=str(path)
            )
        return text.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ImportModelError(f"cannot read {path.name}: {error}", where=str(path)) from error
