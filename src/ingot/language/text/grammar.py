"""Constrained answers: a JSON schema, a regular expression or a grammar determines which tokens may come next.

    constraint = Grammars(tokenizer, vocabulary).constraint(schema={"type": "object", ...})
    while not constraint.is_done:  bias = constraint.bias();  constraint.accept(token)

They use the library `llguidance`, whose grammars are those of Lark: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.language.text.schemas import check_schemas, schemas_of
from ingot.language.text.tokenizer import Tokenizer
from ingot.support.errors import ImportModelError, InputError

if TYPE_CHECKING:
    import llguidance
    from llguidance._lib import JsonCompileOptions

_EXTRA = "pip install 'ingot-compiler[language]'"
_MAX_CHARACTERS = 1 << 20  # characters of a schema or a grammar
# how JSON is written, as by `json.dumps`: with flexible spaces a model could write spaces forever
JSON_SPACES: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Constraints for one tokenizer. vocabulary: the number of logits."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise ImportModelError("schemas and grammars need the package llguidance", fix=_EXTRA) from error
        if not tokenizer.end_ids:
            raise ImportModelError("a schema needs a token that ends an answer", got="none in the tokenizer")
        self._library = llguidance
        self._vocabulary = vocabulary
        ends = [i for i in tokenizer.end_ids if i < vocabulary]
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer.to_json(), vocabulary, ends)
        except Exception as error:  # the library raises plain exceptions
            raise ImportModelError(f"the tokenizer does not take grammars: {error}") from error

    def constraint(self, schema: Any = None, regex: str | None = None, grammar: str | None = None) -> Constraint:
        """A constraint from one of the three. schema: a mapping, its JSON text, a class with `model_json_schema` (as in
        pydantic), or `True` for any JSON. Raises InputError."""
        matcher = self._library.LLMatcher
        try:
            if schema is not None:
                check_schemas((schema_text := _schema_text(schema),))
                text = matcher.grammar_from_json_schema(schema_text, defaults=JSON_SPACES)
            elif regex is not None:
                text = matcher.grammar_from_regex(_checked("regex", regex))
            else:
                check_schemas(schemas_of(source := _checked("grammar", grammar)))
                text = matcher.grammar_from_lark(source)
        except ValueError as error:
            raise InputError("the grammar", expected="one that llguidance reads", got=str(error)) from error
        grammar_matcher = matcher(self._tokenizer, text, log_level=0)
        if grammar_matcher.is_error():
            what = "the schema" if schema is not None else "the grammar"
            raise InputError(what, expected="one that llguidance takes", got=_reason(grammar_matcher))
        return Constraint(grammar_matcher, self._vocabulary)


class Constraint:
    """The state of a constrained answer."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete: no token may follow."""
        return self._matcher.is_stopped()

    def bias(self) -> np.ndarray:
        """f32[vocabulary]: 0 for tokens that may come next, else -inf."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=self._vocabulary, bitorder="little")
        return np.where(allowed, np.float32(0), np.float32(-np.inf))

    def biases(self, tokens: Sequence[int]) -> list[np.ndarray]:
        """`bias` for the next token and after each of these, up to one that may not come or that completes the answer.
        The state stays as it is, whatever becomes of the tokens."""
        biases, ahead = [self.bias()], Constraint(self._matcher.deep_copy(), self._vocabulary)
        for token in tokens:
            if biases[-1][token] < 0:
                break
            try:
                ahead.accept(token)
                if ahead.is_done:
                    break
                biases.append(ahead.bias())
            except InputError:  # it is an error of the answer only if the token is drawn
                break
        return biases

    def forced(self) -> list[int]:
        """The next tokens of a text that the grammar leaves no choice about; other tokens may have the same text."""
        return self._matcher.compute_ff_tokens()

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError("the grammar", expected="an answer within its limits", got=_reason(self._matcher))


def _reason(matcher: llguidance.LLMatcher) -> str:
    """The error of a matcher, without the dump of its state."""
    return matcher.get_error().partition("<state>")[0].strip()


def _schema_text(schema: Any) -> str:
    if schema is True:
        return "{}"
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if not isinstance(schema, str | Mapping):
        raise InputError("schema", expected="a JSON schema as a dict or a text", got=type(schema).__name__)
    try:
        text = json.dumps(json.loads(schema) if isinstance(schema, str) else schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("schema", expected="JSON", got=str(error)) from error
    return _checked("schema", text)


def _checked(what: str, text: Any) -> str:
    if not isinstance(text, str):
        raise InputError(what, expected="a text", got=type(text).__name__)
    if len(text) > _MAX_CHARACTERS:
        raise InputError(what, expected=f"at most {_MAX_CHARACTERS} characters", got=len(text))
    return text
