import ast
import os
import re

import pytest

from shoestring.base.errors import UsageError
from shoestring.remote.kaggle.kernel.script import MAX_BYTES, make_script, program
from tests.remote.kaggle.kernel.layout import make_config

OPTIONS = {"epochs": "5", "note": "quotes ' \" and \\ and ué\n"}
CONFIG = make_config(3, recipe="recipe/mine.py", files={"recipe/mine.py": b"'\"\\\n# caf\xc3\xa9"}, set=OPTIONS)


def test_script_has_the_configuration_as_its_first_assignment():
    script = make_script(CONFIG)
    head = script[: script.index('"""One session')]
    names = {}
    exec(compile(head, "head", "exec"), names)
    assert names["CONFIG"] == CONFIG
    assert CONFIG["nonce"] in script  # by which a push that landed is recognized
    compile(script, "script", "exec")


def test_modules_of_the_program_share_one_namespace():
    names, imported = [], set()
    for node in ast.parse(program()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [item.id for target in node.targets for item in ast.walk(target) if isinstance(item, ast.Name)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            assert not getattr(node, "module", "").startswith("shoestring")
            imported |= {alias.asname or alias.name for alias in node.names}
    assert len(names) == len(set(names)) > 40
    assert not imported.intersection(names)


def test_script_that_is_too_large_names_the_largest_files():
    files = {"small.py": b"pass", "recipe/weights.bin": os.urandom(MAX_BYTES)}
    with pytest.raises(UsageError, match=re.escape("Kaggle accepts at most")) as raised:
        make_script(make_config(3, files=files))
    assert "recipe/weights.bin" in raised.value.problems[0] and "--data" in raised.value.hint
