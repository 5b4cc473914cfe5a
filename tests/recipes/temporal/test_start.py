"""What nobody uses is not loaded before the first update: neither in training nor where the update is followed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

UNUSED = {"torchmetrics", "matplotlib", "PIL", "peft", "transformers", "sklearn", "scipy", "networkx", "jinja2"}
COMPILER = {"torch._dynamo.eval_frame", "torch._inductor.compile_fx"}

DRIVER = """
import importlib, json, os, subprocess, sys
from pathlib import Path

place, shared = Path({place!r}), {shared}
NOTING = '''
import json, runpy, sys
from pathlib import Path
from shoestring.trace import child

answer = child._RequestHandler.answer

def noted(session, question):
    given = answer(session, question)
    Path({place!r}, "following").write_text(json.dumps(sorted(sys.modules)))
    return given

child._RequestHandler.answer = noted
'''
begin = subprocess.Popen

def popen(command, *arguments, **named):
    if command[-2:] == ["-m", "shoestring.trace"]:
        (place / "begun anew").touch()
        command = [sys.executable, "-c", NOTING + "runpy.run_module('shoestring.trace', run_name='__main__')"]
    return begin(command, *arguments, **named)

subprocess.Popen = popen
if shared:
    exec(NOTING)

def note(*_):
    if os.getpid() == here and not (place / "training").exists():
        (place / "training").write_text(json.dumps(sorted(sys.modules)))

class Watching:
    # Torch is not imported here sooner than training does it.
    def find_spec(self, name, path=None, target=None):
        if name == "shoestring.train.loop":
            importlib.import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(note)
        return None

here = os.getpid()
sys.meta_path.insert(0, Watching())
if shared:
    import torch
import shoestring
from shoestring.trace import tracer

tracer._torch_can_be_shared = lambda: shared

shoestring.train("temporal", run=place / "run", size="tiny", epochs=1)
"""


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_unused_is_loaded_before_the_first_update(shared: bool, tmp_path: Path) -> None:
    code = DRIVER.format(place=str(tmp_path), shared=shared)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "begun anew").exists() is not shared
    training, following = (set(json.loads((tmp_path / name).read_text())) for name in ("training", "following"))
    assert "torch.optim" in training and "shoestring.trace.update" in following
    assert not training & (UNUSED | COMPILER | {"sympy"})
    assert not following & (UNUSED | COMPILER)
