"""JSON schemas from anywhere: each is first read in a child process with bounded time and memory.

llguidance intersects regular expressions that hold for the same text. Six `multipleOf` in an `allOf` take minutes and
gigabytes, as do hundreds of `patternProperties`, and its own limits do not count that.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys

from ingot.support.errors import InputError

_SECONDS, _BYTES = 2, 1 << 30  # of processor time and of address space
_WAIT_SECONDS = 20  # for them on a busy machine
_EXPRESSION = re.compile(r'"(pattern|patternProperties|format|multipleOf)":')
_CODE = f"""
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
    resource.setrlimit(resource.RLIMIT_AS, ({_BYTES}, {_BYTES}))
except (ImportError, ValueError):  # Windows, or smaller limits
    pass
import json, sys, llguidance
for schema in json.load(sys.stdin):
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
"""


@functools.lru_cache(maxsize=64)
def check_schemas(schemas: tuple[str, ...]) -> None:
    """Raise InputError unless these schemas, as JSON texts, are read within the limits. Schemas that are wrong are not
    reported here. Those without regular expressions need no child process."""
    texts = [text for text in schemas if _EXPRESSION.search(text)]
    if not texts:
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", _CODE]
    try:
        code = subprocess.run(
            command, env=environment, input=json.dumps(texts).encode(), capture_output=True, timeout=_WAIT_SECONDS,
            check=False,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        code = -1
    if code < 0:  # killed, or out of memory
        expected = f"patterns and multiples that are read in {_SECONDS} s and {_BYTES >> 20} MiB"
        raise InputError("the schema", expected=expected, got="more work", fix="combine fewer of them")


def schemas_of(grammar: str) -> tuple[str, ...]:
    """The schemas in a grammar of Lark, behind `%json`."""
    decoder, schemas = json.JSONDecoder(), list[str]()
    for match in re.finditer(r"%json\s*", grammar):
        try:
            _, end = decoder.raw_decode(grammar, match.end())
        except (ValueError, RecursionError):  # which llguidance reports
            continue
        schemas.append(grammar[match.end() : end])
    return tuple(schemas)
