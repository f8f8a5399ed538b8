"""The place in the user's program that an operation comes from, read from MLIR's location texts.

callsite("jit(f)/dot_general"(#loc4) at #loc9)   ->   dot_general at model.py:31
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ALIAS = re.compile(r"#loc\w*")
_FILE = re.compile(r'"([^"]+)" : (\d+)')
_NAME = re.compile(r'"([^"]*)" \(')


def describe(text: str, aliases: Mapping[str, str], caller: str = "") -> str:
    """The first file and line that `text` leads to, rather one of no installed package, behind the name that it gives;
    "" for an unknown place.

    caller: the place of the call of the function that it stands in, where `text` leads to no file: JAX drops those of
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
