"""An engine of compiled programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.language.engine.engine import Engine, Limits
from ingot.language.engine.paging import PAGE
from ingot.language.engine.speculation import Draft, Lookup
from ingot.language.engine.stepper import Stepper
from ingot.language.text.tokenizer import Tokenizer
from ingot.support.errors import InputError, check_number

Compiled = tuple[Stepper, Mapping[str, Any]]  # a program of steps, and its description


def open_engine(
    model: Compiled,
    tokenizer: Tokenizer | None,
    *,
    queue: int = 64,
    prefill_chunk: int = 64,
    speculate: str | None = None,
    draft: Compiled | None = None,
    proposals: int = 3,
) -> Engine:
    """Open an engine. draft: a model with pages for all sequences at full length. The rest is as in
    `LanguageModel.engine`. Raises InputError."""
    check_number("queue", queue, "0 or more", lambda n: n >= 0, whole=True)
    check_number("proposals", proposals, "1 to 64", lambda n: 1 <= n <= 64, whole=True)
    expected = f"a multiple of {PAGE}"
    check_number("prefill_chunk", prefill_chunk, expected, lambda n: n > 0 and n % PAGE == 0, whole=True)
    if speculate not in (None, "prompt") or (speculate is not None and draft is not None):
        got = repr(speculate) if draft is None else "both"
        raise InputError("speculate, draft", expected="'prompt', or a draft, or neither", got=got)
    stepper, facts = model
    rewinds, context = bool(facts["rewinds"]), int(facts["context"])
    speculator = Lookup() if speculate else None
    if draft is not None:
        draft_stepper, draft_facts = draft
        rewinds = rewinds and bool(draft_facts["rewinds"])
        speculator = Draft(draft_stepper, stepper.vocabulary, int(draft_facts["context"]), prefill_chunk)
    if speculator is not None and not rewinds:
        raise InputError("speculation", expected="models of attention alone: convolutions cannot go back", got="others")
    limits = Limits(
        context,
        int(facts["pages"]),
        int(facts["cache_bytes"]),
        prefill_chunk,
        queue,
        proposals,
        shares_prefixes=rewinds,
    )
    return Engine(stepper, tokenizer, limits, speculator)
