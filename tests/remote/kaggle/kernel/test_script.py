import json
import os
import re

import pytest

from shoestring.errors import UsageError
from shoestring.remote.kaggle.kernel.script import MAX_BYTES, DataSet, KernelConfig, Previous, make_script, nonce_of

CONFIG = KernelConfig(
    nonce="0123456789abcdef" * 2,
    session=3,
    recipe="recipe/mine.py",
    on="kaggle-t4x2",
    limit_seconds=42_000,
    package="me/package",
    files={"recipe/mine.py": b"'\"\\\n# caf\xc3\xa9"},
    options={"epochs": "5", "note": "quotes ' \" and \\ and ué\n"},
    data=DataSet(dataset="me/bars", path="a/b.csv"),
    previous=Previous(kernel="me/run-a", nonce="f" * 32),
)


def test_script_has_the_configuration_as_its_first_assignment():
    script = make_script(CONFIG)
    head = script[: script.index('"""One session')]
    names = {}
    exec(compile(head, "head", "exec"), names)
    assert names["CONFIG"] == CONFIG.as_json()
    assert names["CONFIG"]["set"] == dict(CONFIG.options) and names["CONFIG"]["hand_over_seconds"] == 300
    compile(script, "script", "exec")


def test_nonce_is_read_from_the_source_of_this_program_only():
    assert nonce_of(make_script(CONFIG)) == CONFIG.nonce
    assert nonce_of(make_script(CONFIG).replace("\n", "\r\n")) == CONFIG.nonce
    assert nonce_of(f'print("{CONFIG.nonce}")') is None
    # The nonce of the session before, and what an option contains, are no nonces of this session.
    hostile = KernelConfig(**{**vars(CONFIG), "recipe": '{"nonce": "' + "e" * 32, "nonce": "d" * 32})
    assert nonce_of(make_script(hostile)) == "d" * 32


def test_script_that_is_too_large_names_the_largest_files():
    files = {"small.py": b"pass", "recipe/weights.bin": os.urandom(MAX_BYTES)}
    with pytest.raises(UsageError, match=re.escape("Kaggle accepts at most")) as raised:
        make_script(KernelConfig(**{**vars(CONFIG), "files": files}))
    assert "recipe/weights.bin" in raised.value.problems[0] and "--data" in raised.value.hint
    assert json.dumps(raised.value.problems)
