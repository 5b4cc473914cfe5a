"""TF32 is allowed by the setting, and only as long as it says so."""

from __future__ import annotations

import pytest
import torch

from shoestring.base.settings import Settings
from shoestring.techniques import tf32


def is_allowed() -> bool:
    return torch.backends.cuda.matmul.allow_tf32


@pytest.fixture(autouse=True)
def _restored():
    before = is_allowed()
    yield
    tf32.apply(Settings())
    torch.backends.cuda.matmul.allow_tf32 = before


def test_setting_allows_tf32_for_this_session_only():
    assert not is_allowed()
    tf32.apply(Settings(tf32=True))
    assert is_allowed()
    tf32.apply(Settings(tf32=True))
    tf32.apply(Settings())
    assert not is_allowed()


def test_newer_interface_of_a_recipe_is_left_alone():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        tf32.apply(Settings())
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"


def test_the_recipes_own_choice_remains():
    torch.backends.cuda.matmul.allow_tf32 = True
    for value in (False, True, False):
        tf32.apply(Settings(tf32=value))
        assert is_allowed()
