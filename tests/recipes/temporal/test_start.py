"""Unused modules are not imported before the first update, neither in training nor in the tracing process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_except

UNUSED = {"torchmetrics", "matplotlib", "PIL", "peft", "transformers", "sklearn", "scipy", "networkx", "jinja2"}
COMPILER = {"torch._dynamo.eval_frame", "torch._inductor.compile_fx"}

DRIVER = """
import importlib, json, os, subprocess, sys
from pathlib import Path

folder, shared = Path({folder!r}), {shared}
RECORDING = '''
import json, runpy, sys
from pathlib import Path
from shoestring.planning.trace import child

original_answer = child._RequestHandler.answer

def recorded_answer(session, question):
    reply = original_answer(session, question)
    Path({folder!r}, "tracing").write_text(json.dumps(sorted(sys.modules)))
    return reply

child._RequestHandler.answer = recorded_answer
'''
original_popen = subprocess.Popen

def popen(command, *args, **kwargs):
    if "shoestring.planning.trace" in command:
        (folder / "new process").touch()
        code = RECORDING + "runpy.run_module('shoestring.planning.trace', run_name='__main__')"
        command = [sys.executable, "-c", code, *command[command.index("shoestring.planning.trace") + 1 :]]
    return original_popen(command, *args, **kwargs)

subprocess.Popen = popen
if shared:
    exec(RECORDING)

def record(*_):
    if os.getpid() == training_pid and not (folder / "training").exists():
        (folder / "training").write_text(json.dumps(sorted(sys.modules)))

class ImportHook:
    # Torch is not imported here before training imports it.
    def find_spec(self, name, path=None, target=None):
        if name == "shoestring.training.loop":
            importlib.import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(record)
        return None

training_pid = os.getpid()
sys.meta_path.insert(0, ImportHook())
if shared:
    import torch
import shoestring
from shoestring.planning.trace import child_process

child_process._torch_can_be_shared = lambda: shared

shoestring.train("temporal", run=folder / "run", size="tiny", epochs=1)
"""


@pytest.mark.parametrize("shared", slow_except([False, True], True))
def test_nothing_unused_is_loaded_before_the_first_update(shared: bool, tmp_path: Path) -> None:
    code = DRIVER.format(folder=str(tmp_path), shared=shared)
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "new process").exists() is not shared
    training, tracing = (set(json.loads((tmp_path / name).read_text())) for name in ("training", "tracing"))
    assert "torch.optim" in training and "shoestring.planning.trace.update" in tracing
    assert not training & (UNUSED | COMPILER | {"sympy"})
    assert not tracing & (UNUSED | COMPILER)
