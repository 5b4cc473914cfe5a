"""The package as a whole: its public names, its imports, and operations that it must not use."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shoestring

PACKAGE = Path(shoestring.__file__).parent
MODULES = {
    path.relative_to(PACKAGE.parent).as_posix().removeprefix("shoestring/"): path
    for path in sorted(PACKAGE.parent.glob("shoestring*/**/*.py"))
}


def test_public_names():
    verbs = "check compare cross_validate estimate evaluate export load measured notebook plan plan_inference predict"
    verbs += " prepare_rehearsal rehearse replay report train watch"
    assert shoestring.__all__ == ["__version__", *verbs.split()]
    assert dir(shoestring) == sorted(shoestring.__all__)
    assert (PACKAGE / "py.typed").exists()


def test_functions_are_not_replaced_by_packages_of_their_name():
    import shoestring.planning.plan
    import shoestring.training.loop

    assert callable(shoestring.plan)
    assert callable(shoestring.train)


def test_import_is_lightweight():
    heavy = "{'torch', 'numpy', 'pandas', 'matplotlib', 'safetensors', 'psutil', 'rich'}"
    script = f"import sys, shoestring; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


SENDS_A_LIVE_RECIPE = {"planning/trace/child_process.py": {"cloudpickle"}, "planning/trace/__main__.py": {"pickle"}}
"""An object of this process goes to its child process, through an anonymous file."""


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_unpickled(name):
    """No module uses pickle, directly or through a library: tensors are stored as safetensors, all else as JSON.

    Weights of other programs are read by torch's reader of tensors, which executes nothing.
    """
    tree = ast.parse(MODULES[name].read_text())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [*(alias.name for alias in node.names), getattr(node, "module", None) or ""]
    }
    used = imported & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert used == SENDS_A_LIVE_RECIPE.get(name, set())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            assert function not in {"torch.save", "pandas.read_pickle", "eval", "exec"}
            if function.startswith("torch") and function.endswith("load"):
                # Its reader builds tensors and plain values only.
                assert {"weights_only": "True"}.items() <= {
                    keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords
                }.items()
            assert not any(
                keyword.arg in ("allow_pickle", "trust_remote_code") and ast.unparse(keyword.value) != "False"
                for keyword in node.keywords
            )


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_docstring(name):
    source = MODULES[name].read_text()
    assert not source.strip() or ast.get_docstring(ast.parse(source))


@pytest.mark.parametrize(
    "interrupted", ["builtins.__import__", "shoestring.api.targets"], ids=["while starting", "in a command"]
)
def test_ctrl_c_is_no_traceback(interrupted):
    script = (
        "import builtins, sys, shoestring.api, shoestring.__main__ as program\n"
        "def interrupt(*_, **__):\n"
        "    raise KeyboardInterrupt\n"
        "sys.argv = ['shoestring', 'targets']\n"
        f"{interrupted} = interrupt\n"
        "program.main()\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (-signal.SIGINT, "interrupted\n")
