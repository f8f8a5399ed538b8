"""Tokens of MLIR text, by one regular expression.

Types, dense literals and dialect attributes are one token each: most of a program's text is types, and few of
them differ.
"""

from __future__ import annotations

import re
from typing import NoReturn

from ingot.support.errors import ImportModelError

# the contents of angle brackets, up to five deep; possessive, so that matching takes linear time
_PIECE = r'(?:[^<>"-]++|->|-|"[^"]*+"'
_NESTED = _PIECE + ")*+"
for _ in range(4):
    _NESTED = _PIECE + f"|<{_NESTED}>)*+"

_TOKEN = re.compile(
    rf"""(?:\s++|//[^\n]*+)*+(
      %[\w$.-]++(?:\#\d++)?                         # a value
    | (?:tensor|tuple|complex|vector|memref|array)<{_NESTED}>
    | dense(?:_resource)?<(?:"[^"]*+"|[^<>"]*+)>
    | [A-Za-z_][\w$.]*+
    | "(?:[^"\\]++|\\.)*+"
    | [!\#][A-Za-z_][\w$.-]*+(?:<{_NESTED}>)?
    | -?(?:0x[0-9A-Fa-f]++|\d++\.\d*+(?:[eE][+-]?\d++)?|\d++)
    | @(?:[\w$.-]++|"[^"]*+")(?:::@(?:[\w$.-]++|"[^"]*+"))*+
    | \^[\w$.-]++
    | ->|\{{-\#|\#-\}}
    | \S
    )""",
    re.VERBOSE | re.DOTALL,
)
tokenize = _TOKEN.findall


def fail(text: str, index: int, expected: str, where: str = "") -> NoReturn:
    """Raise ImportModelError for the token `index` of `text`."""
    for i, match in enumerate(_TOKEN.finditer(text)):
        if i == index:
            at = match.start(1)
            line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at))
            place, got = f"line {line}:{column}", repr(match.group(1)[:40])
            break
    else:
        place, got = "its end", "nothing"
    raise ImportModelError(
        "not readable as StableHLO text", expected=expected, got=got, where=f"{place} of {where}" if where else place
    )
