"""Expandable segments are set in the environment, and in torch if it is imported."""

import pytest
import torch

from shoestring.techniques import expandable_segments
from shoestring.techniques.expandable_segments import VARIABLE

OPTION = "expandable_segments:True"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", OPTION),
        ("max_split_size_mb:64", f"max_split_size_mb:64,{OPTION}"),
        (OPTION, None),
    ],
)
def test_variable_has_the_option_once(value, expected):
    variables = expandable_segments.expandable_segments({VARIABLE: value})
    assert variables == ({VARIABLE: expected} if expected else {})


def test_imported_torch_gets_the_option(monkeypatch):
    options = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", options.append, raising=False)
    monkeypatch.setenv(VARIABLE, "max_split_size_mb:64")
    assert expandable_segments.enable()
    assert options == [f"max_split_size_mb:64,{OPTION}"]
    assert expandable_segments.enable() and len(options) == 1  # it is set
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    monkeypatch.setenv(VARIABLE, "")
    assert not expandable_segments.enable()  # torch may have read the variable before
