import gc

import pytest

from ingot.support.garbage import no_collection


def test_the_collector_is_as_it_was():
    assert gc.isenabled()
    with no_collection():
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_within_leaves_it_running():
    with pytest.raises(ValueError), no_collection():
        raise ValueError
    assert gc.isenabled()
