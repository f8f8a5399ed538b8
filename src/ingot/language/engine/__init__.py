"""Concurrent sequences on one model: continuous batching over pages of keys and values, and speculation.

    engine = lm.engine(sequences=8)                                 # of an ingot.LanguageModel
    answer = engine.submit(prompt_ids, request)                     # any thread; never blocks; BusyError, InputError
    for piece in answer: piece.text, piece.tokens, piece.finish     # tokens: id, text, logprob, top
    answer.subscribe(callback); answer.take(); answer.cancel(); answer.finish_reason
    engine.statistics(); engine.close()

request: `language.text.generation.Request` (max_tokens, sampling, ends, stop, bias, logprobs, constraint), which
`lm.request(max_tokens=..., temperature=..., schema=..., ...)` creates from the options of `lm.generate`.
"""

from ingot.language.engine.answer import Answer, BusyError
from ingot.language.engine.engine import Engine, Limits, Statistics
from ingot.language.engine.open import open_engine
from ingot.language.engine.stepper import Stepper

__all__ = ["Answer", "BusyError", "Engine", "Limits", "Statistics", "Stepper", "open_engine"]
