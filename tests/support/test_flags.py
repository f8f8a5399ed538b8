from pathlib import Path

import pytest

from ingot.support import flags
from ingot.support.errors import InputError


def test_defaults(monkeypatch: pytest.MonkeyPatch):
    for name in ("DEBUG", "FUEL", "THREADS", "VERIFY", "WINOGRAD", "CACHE_DIR", "CACHE_MB"):
        monkeypatch.delenv(f"INGOT_{name}", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert (flags.debug_level(), flags.fuel(), flags.threads()) == (0, None, None)
    assert flags.cache_dir() == Path.home() / ".cache" / "ingot"
    assert flags.cache_bytes() == 4 << 30
    assert flags.winograd() and not flags.verify()


def test_values_and_refusals(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INGOT_WINOGRAD", "0")
    assert not flags.winograd()
    monkeypatch.setenv("INGOT_VERIFY", "1")
    assert flags.verify()
    monkeypatch.setenv("INGOT_VERIFY", "0")
    monkeypatch.setenv("INGOT_DEBUG", "1")
    assert flags.verify()
    monkeypatch.setenv("INGOT_FUEL", "0")
    assert flags.fuel() == 0
    monkeypatch.setenv("INGOT_THREADS", "0")
    with pytest.raises(InputError, match=r"INGOT_THREADS: expected an integer in \[1, 1024\], got '0'"):
        flags.threads()
    monkeypatch.setenv("INGOT_DEBUG", "loud")
    with pytest.raises(InputError, match="INGOT_DEBUG"):
        flags.debug_level()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("INGOT_CACHE_DIR", raising=False)
    assert flags.cache_dir() == Path.home() / ".cache" / "ingot"
    monkeypatch.setenv("INGOT_CACHE_DIR", "/x/y")
    assert flags.cache_dir() == Path("/x/y")


@pytest.mark.parametrize("home", ["relative", ".", "~nobody-of-this-name"])
def test_a_relative_home_is_refused(home: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("XDG_CACHE_HOME", "INGOT_CACHE_DIR", "INGOT_TUNING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    for place in (flags.cache_dir, flags.tuning):
        with pytest.raises(InputError, match="HOME: expected a"):
            place()
    monkeypatch.setenv("INGOT_CACHE_DIR", "~nobody-of-this-name/cache")
    with pytest.raises(InputError, match="INGOT_CACHE_DIR: expected a home folder"):
        flags.cache_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.delenv("INGOT_CACHE_DIR")
    assert flags.cache_dir() == Path("/cache/ingot")
