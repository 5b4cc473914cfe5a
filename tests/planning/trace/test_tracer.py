"""The child process: it serves many requests, passes on its errors, and ends with the tracer."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from shoestring.base.errors import DataError, TraceError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Tracer, child_process, waiting
from shoestring.recipe import finding
from tests.planning.trace.sample_recipes import Linears
from tests.slow import slow_except

T4 = DEVICES["t4"]

MISFITS = """
import os
import torch
from torch import nn
from shoestring.base.errors import DataError

class Base:
    def model(self):
        print("a line on standard output")
        return nn.Linear(4, 1)

    def batch(self, size):
        return torch.zeros(size, 4)

    def loss(self, model, batch):
        return model(batch).mean()

class BadData(Base):
    def data(self):
        raise DataError("two bad rows", problems=["row 3: empty", "row 7: text"], hint="drop them")

class Dying(Base):
    def loss(self, model, batch):
        os.abort()

class Deciding(Base):
    def loss(self, model, batch):
        return model(batch).mean() if batch.sum().item() else None

class Unreduced(Base):
    def loss(self, model, batch):
        return model(batch).squeeze(1)

class Endless(Base):
    def model(self):
        while True:
            pass

class Mismatched(Base):
    def batch(self, size):
        return torch.zeros(size, 5)

class Initialized(Base):
    def model(self):
        layer = nn.Linear(4, 1)
        layer.weight.data.mul_(1 / layer.weight.norm().item())
        return layer

class Elsewhere(Base):
    data = "folder"
"""


@pytest.fixture
def odd_recipes(tmp_path: Path) -> Path:
    path = tmp_path / "odd_recipes.py"
    path.write_text(MISFITS)
    return path


def children() -> list[psutil.Process]:
    return psutil.Process().children()


@pytest.fixture(autouse=True)
def no_remaining_child() -> Iterator[None]:
    before = len(children())
    yield
    assert len(children()) == before


BOTH = pytest.mark.parametrize("child_kind", ["spawned", "forked"], indirect=True)
"""A child that imports torch shows almost nothing that a forked one does not; it takes seconds more."""
OWN_CHILDREN = pytest.mark.parametrize("child_kind", ["forked"], indirect=True)
"""The test chooses its children."""


@pytest.fixture(params=slow_except(["spawned", "forked"], "forked"), autouse=True)
def child_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with a child that imports torch itself, and with one that inherits it from this process."""
    monkeypatch.setattr(child_process, "_torch_can_be_shared", lambda: request.param == "forked")
    return str(request.param)


@BOTH
def test_child_serves_several_requests_despite_prints(odd_recipes: Path) -> None:
    with Tracer(finding.load(f"{odd_recipes}:Base", {})) as recipe_tracer:
        assert recipe_tracer.facts.parameters_total == 5
        process = children()
        small = recipe_tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=T4)
        large = recipe_tracer.trace(Settings(micro_batch=64, precision="fp32"), accumulate=3, device=T4)
        assert children() == process
    assert (small.microbatches, large.microbatches) == (1, 2)


def test_a_recipe_imports_in_the_child_what_it_imports_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sizes_of_mine.py").write_text("WIDTH = 4\n")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from sizes_of_mine import WIDTH\nfrom torch import nn\nfrom tests.mine import Mine\n\n\n"
        "class Wide(Mine):\n    def model(self):\n        return nn.Linear(3, WIDTH)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    with Tracer(finding.load(str(recipe), {})) as recipe_tracer:
        assert recipe_tracer.facts.parameters_total == 16


def test_interruption_while_the_child_is_reaped_does_not_kill_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` sends SIGINT to its command and to the process group."""

    def kill(child: child_process.ChildProcess) -> None:
        original(child)
        raise KeyboardInterrupt

    original = child_process.ChildProcess.kill
    monkeypatch.setattr(child_process.ChildProcess, "kill", kill)
    with Tracer(finding.find(Linears())) as tracer:
        assert tracer.facts
        with pytest.raises(KeyboardInterrupt):
            tracer.close()


def test_data_errors_are_passed_on_unchanged(odd_recipes: Path) -> None:
    with Tracer(finding.load(f"{odd_recipes}:BadData", {})) as recipe_tracer, pytest.raises(DataError) as caught:
        assert recipe_tracer.facts
    assert caught.value.problems == ("row 3: empty", "row 7: text")
    assert caught.value.hint == "drop them"


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(MISFITS.splitlines(), start=1) if text in line)


def test_loss_of_each_sample_has_a_message_of_its_own(odd_recipes: Path) -> None:
    with (
        Tracer(finding.load(f"{odd_recipes}:Unreduced", {})) as recipe_tracer,
        pytest.raises(TraceError, match=r"loss\(\) returned \(2,\)"),
    ):
        recipe_tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=T4)


def test_data_dependent_code_is_named_with_its_line(odd_recipes: Path) -> None:
    with Tracer(finding.load(f"{odd_recipes}:Deciding", {})) as recipe_tracer:
        for _ in range(2):
            with pytest.raises(TraceError, match=rf"odd_recipes\.py:{line_of('.item() else')} in loss"):
                recipe_tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=T4)


@pytest.fixture
def replaced_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace faulthandler's signal handler in a forked child, as Lightning's trainer does in its process."""
    serve = child_process._serve_forked

    def serve_without_handler(*arguments: Any) -> None:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        serve(*arguments)

    monkeypatch.setattr(child_process, "_serve_forked", serve_without_handler)


@BOTH
@pytest.mark.usefixtures("replaced_handlers")
def test_abort_is_named_with_its_line(odd_recipes: Path) -> None:
    with Tracer(finding.load(f"{odd_recipes}:Dying", {})) as recipe_tracer:
        for _ in range(2):
            with pytest.raises(TraceError, match=rf"SIGABRT at .*odd_recipes\.py:{line_of('os.abort()')} in loss"):
                recipe_tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=T4)


def test_error_names_line_operator_and_shapes(odd_recipes: Path) -> None:
    with Tracer(finding.load(f"{odd_recipes}:Mismatched", {})) as recipe_tracer:
        line = line_of("return model(batch).mean()")
        with pytest.raises(TraceError, match=rf"odd_recipes\.py:{line} in loss during aten::\w+.*5.*4"):
            recipe_tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=T4)


def test_recipe_error_names_no_line_of_shoestring(odd_recipes: Path) -> None:
    with Tracer(finding.load(f"{odd_recipes}:Elsewhere", {})) as recipe_tracer, pytest.raises(TraceError) as caught:
        assert recipe_tracer.facts
    assert caught.value.message == "TypeError: 'str' object is not callable"


def test_model_that_reads_its_weights_is_built(odd_recipes: Path) -> None:
    with Tracer(finding.load(f"{odd_recipes}:Initialized", {})) as recipe_tracer:
        assert (
            recipe_tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=T4).facts.weight_bytes
            == 20
        )


def test_ctrl_c_during_a_request_ends_the_child(odd_recipes: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    other_children = children()
    with Tracer(finding.load(f"{odd_recipes}:Endless", {})) as recipe_tracer:
        with pytest.raises(KeyboardInterrupt):
            assert recipe_tracer.facts
        assert children() == other_children
    signal.signal(signal.SIGALRM, previous)


def test_live_recipe_is_inherited_by_fork_also_after_a_trace_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(micro_batch=2, precision="fp32")
    with Tracer(finding.find(Linears())) as recipe_tracer:
        with monkeypatch.context() as patched:
            patched.setenv(waiting.LIMIT_VARIABLE, "0.001")
            with pytest.raises(TraceError, match="has not ended within"):
                recipe_tracer.trace(settings, accumulate=1, device=T4)
        assert recipe_tracer.trace(settings, accumulate=1, device=T4).events


@pytest.mark.slow
@OWN_CHILDREN
def test_live_recipe_is_sent_to_a_new_process_if_torch_cannot_trace_in_a_forked_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OfANotebook(Linears):
        """A class that cannot be imported."""

    settings = Settings(micro_batch=2, precision="fp32")
    with Tracer(finding.find(OfANotebook())) as recipe_tracer:
        forked = recipe_tracer.trace(settings, accumulate=1, device=T4)
    monkeypatch.setattr(child_process, "_backward_works_after_fork", lambda: False)
    with Tracer(finding.find(OfANotebook())) as recipe_tracer:
        assert recipe_tracer.trace(settings, accumulate=1, device=T4).events == forked.events
    recipe = OfANotebook()
    recipe.rows = (row for row in range(3))
    other_children = children()
    with Tracer(finding.find(recipe)) as recipe_tracer, pytest.raises(TraceError) as caught:
        assert recipe_tracer.facts
    assert "OfANotebook cannot be sent to the process that traces: TypeError: cannot pickle" in str(caught.value)
    assert "its path" in caught.value.hint
    assert children() == other_children


@OWN_CHILDREN
@pytest.mark.skipif(not torch.version.cuda, reason="only a build with CUDA forbids a backward in a forked child")
def test_backward_after_fork_is_tried() -> None:
    # A simulated device is enough for the threads of the backward.
    program = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from shoestring.planning.trace.child_process import _backward_works_after_fork
print(_backward_works_after_fork())
with FakeTensorMode():
    torch.zeros(1, device="cuda")
torch.zeros(1, requires_grad=True).sum().backward()
print(_backward_works_after_fork())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"]


def test_copy_traces_the_same_and_ends_with_the_original() -> None:
    settings = Settings(micro_batch=8, precision="fp16")
    other_children = children()
    with Tracer(finding.load("temporal", {"size": "tiny"})) as recipe_tracer:
        copy = recipe_tracer.copy()
        assert copy is not None and recipe_tracer.copy() is copy
        (child,) = set(children()) - set(other_children)
        (grandchild,) = child.children()
        copied = copy.trace(settings, accumulate=2, device=T4)
        assert recipe_tracer.trace(settings, accumulate=2, device=T4) is copied
        recipe_tracer._traces.clear()
        assert recipe_tracer.trace(settings, accumulate=2, device=T4).events == copied.events
    grandchild.wait(5)


def test_copy_is_made_before_the_first_trace_only() -> None:
    with Tracer(finding.find(Linears())) as recipe_tracer:
        recipe_tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=T4)
        assert recipe_tracer.copy() is None


def test_death_of_a_copy_leaves_the_original(odd_recipes: Path) -> None:
    settings = Settings(micro_batch=2, precision="fp32")
    with Tracer(finding.load(f"{odd_recipes}:Dying", {})) as recipe_tracer:
        copy = recipe_tracer.copy()
        assert copy is not None
        for _ in range(2):
            with pytest.raises(TraceError, match="the copy of the process that traces"):
                copy.trace(settings, accumulate=1, device=T4)
        with pytest.raises(TraceError, match="SIGABRT"):
            recipe_tracer.trace(settings, accumulate=1, device=T4)


SHARING_SCRIPT = """
import sys, threading
from shoestring.planning.trace import child_process
print(child_process._torch_can_be_shared())
import torch
torch.version.cuda = torch.version.hip = None
print(child_process._torch_can_be_shared())
torch.version.cuda = "12.4"
print(child_process._torch_can_be_shared())
torch.version.cuda = None
end = threading.Event()
other = threading.Thread(target=end.wait)
other.start()
print(child_process._torch_can_be_shared())
end.set()
"""


@pytest.mark.slow
@OWN_CHILDREN
def test_torch_is_shared_without_cuda_and_threads() -> None:
    process = subprocess.run([sys.executable, "-c", SHARING_SCRIPT], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "True", "False", "False"]


@OWN_CHILDREN
def test_trace_is_the_same_in_either_child(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    for shared in (False, True):
        monkeypatch.setattr(child_process, "_torch_can_be_shared", lambda shared=shared: shared)
        with Tracer(finding.load("temporal", {"size": "tiny"})) as recipe_tracer:
            trace = recipe_tracer.trace(Settings(micro_batch=8, precision="fp16"), accumulate=2, device=T4).json()
        assert trace["facts"].pop("process_bytes") > 10**8
        traces.append(trace)
    assert traces[0] == traces[1]


@OWN_CHILDREN
def test_importing_the_tracer_imports_no_torch() -> None:
    code = "import sys, shoestring.planning.trace, shoestring.planning.estimate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
