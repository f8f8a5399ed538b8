"""Readers in processes of their own: what they print, how they end, how long they may take."""

from __future__ import annotations

import pytest

from ingot.frontends.shared.subprocesses import run_in_subprocess
from ingot.support.errors import ImportModelError, LimitError
from ingot.support.limits import Limits, limited


def test_what_a_reader_prints_and_how_it_ends():
    echo = "import sys; sys.stdout.write(sys.stdin.read() + sys.argv[1])"
    assert run_in_subprocess(echo, ["!"], "unread", "", stdin=b"text") == b"text!"
    with pytest.raises(ImportModelError, match=r"not a model: its last words at model\.x"):
        run_in_subprocess("import sys; sys.exit('first\\nits last words')", [], "not a model", "model.x")
    with pytest.raises(ImportModelError, match="not a model: its reader crashed"):
        run_in_subprocess("import os; os.abort()", [], "not a model", "")
    with limited(Limits(seconds=0.2)), pytest.raises(LimitError, match="too long"):
        run_in_subprocess("import time; time.sleep(9)", [], "a model", "")


def test_bounds_of_memory():
    code = "from ingot.frontends.shared import subprocesses; subprocesses.limit_resources(9, 1 << 30); bytes(1 << 31)"
    with pytest.raises(ImportModelError, match="MemoryError"):
        run_in_subprocess(code, [], "a model", "")
