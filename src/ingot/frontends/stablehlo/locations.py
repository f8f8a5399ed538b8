"""The location in the user's program that an operation comes from, read from MLIR's location texts.

callsite("jit(f)/dot_general"(#loc4) at #loc9)   ->   dot_general at model.py:31
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ALIAS = re.compile(r"#loc\w*")
_FILE = re.compile(r'"([^"]+)" : (\d+)')
_NAME = re.compile(r'"([^"]*)" \(')


def describe(text: str, aliases: Mapping[str, str], caller: str = "") -> str:
    """The name in `text` and the first file and line, preferably not of an installed package; "" if unknown.

    caller: the location of the call of the enclosing function, for a `text` without a file: JAX drops the locations of
    functions that it traced before.
    """
    expanded = text
    for _ in range(12):
        if len(expanded) > 4000 or not _ALIAS.search(expanded):
            break
        expanded = _ALIAS.sub(lambda m: aliases.get(m[0], "unknown"), expanded)
    files, name = list(_FILE.finditer(expanded)), _NAME.search(expanded)
    user_files = (f for f in files if "-packages/" not in f[1])
    file = next(user_files, files[0] if files else None)
    if file is None:
        only = name or re.match(r'"([^"]*)"', expanded)
        return " in ".join(filter(None, (only[1] if only else "", caller)))
    place = f"{file[1]}:{file[2]}"
    return f"{name[1]} ({place})" if name and name[1] else place
