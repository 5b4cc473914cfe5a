"""Pauses of the garbage collector."""

import gc

import pytest

from shoestring.base.garbage import collection_paused


def test_a_pause_ends_with_what_was_before() -> None:
    assert gc.isenabled()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collection_paused():
        raise KeyError
    assert gc.isenabled()
