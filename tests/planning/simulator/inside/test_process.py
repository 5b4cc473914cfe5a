"""Whole processes, on a CPU: the hooks are the same, only the allocator's observer needs a device."""

from pathlib import Path
from textwrap import dedent

import pytest

from .observed import BEGIN, observe

LOOP = """
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def update(micro_steps=1):
    for _ in range(micro_steps):
        model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_loop_with_accumulation_evaluation_and_saving(tmp_path: Path) -> None:
    script = """
        for epoch in range(2):
            model.train()
            update(2)
            update(2)
            model.eval()
            with torch.no_grad():
                model(torch.ones(2, 4))
                model(torch.ones(2, 4))
            torch.save(model.state_dict(), "weights.pt")
    """
    seen = observe(tmp_path, LOOP + dedent(script))
    assert seen.result.returncode == 0, seen.result.stderr
    assert [(event["update"], event["micro_steps"]) for event in seen.events("update")] == [
        (n, 2) for n in (1, 2, 3, 4)
    ]
    assert seen.phases() == [
        ("loading", 0),
        ("training", 1),
        ("evaluation", 3),
        ("saving", 3),
        ("evaluation", 3),
        ("training", 3),
        ("evaluation", 5),
        ("saving", 5),
        ("evaluation", 5),
    ]
    (size,) = seen.events("files")[-1]["files"].values()
    assert size == (tmp_path / "weights.pt").stat().st_size
    assert seen.events("process")[0]["argv"][0].endswith("script.py")
    assert seen.events("exit")[0]["status"] is None
    assert [line for line in seen.told if line.startswith("update")] == [f"update {n}" for n in (1, 2, 3, 4, 5)]
    assert [line for line in seen.told if line.startswith("phase")] == [
        f"phase {n}" for n in (0, 1, 2, 4, 2, 1, 2, 4, 2)
    ]
    assert seen.told.count("step 2") == 4 and seen.told.count("step 1") == 8


@pytest.mark.slow
def test_a_model_is_evaluated_before_training_and_checkpoints_run_without_gradients(tmp_path: Path) -> None:
    script = """
        from torch.utils.checkpoint import checkpoint
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            def forward(self, x):
                return checkpoint(self.second, self.first(x), use_reentrant=True)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        transform = nn.ReLU()
        with torch.no_grad():
            transform(torch.ones(1))
        with torch.inference_mode():
            model(torch.ones(2, 4))
        for _ in range(3):
            update()
    """
    seen = observe(tmp_path, LOOP + dedent(script))
    assert seen.phases() == [("loading", 0), ("evaluation", 0), ("training", 1)], seen.result.stderr
    assert [event["micro_steps"] for event in seen.events("update")] == [1, 1, 1]


@pytest.mark.slow
def test_optimizers_that_step_in_backward_make_one_update(tmp_path: Path) -> None:
    script = """
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}
        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(torch.ones(2, 4)).mean().backward()
    """
    seen = observe(tmp_path, LOOP + dedent(script))
    assert [event["update"] for event in seen.events("update")] == [1, 2, 3], seen.result.stderr


@pytest.mark.slow
def test_the_process_ends_after_the_updates_that_were_asked_for(tmp_path: Path) -> None:
    script = """
        try:
            while True:
                update()
        except Exception:
            print("caught")
        finally:
            print("cleaned up")
    """
    seen = observe(tmp_path, LOOP + dedent(script), SHOESTRING_SIMULATOR_UPDATES="3")
    assert (seen.result.returncode, seen.result.stdout) == (0, "cleaned up\n"), seen.result.stderr
    assert seen.events("stopped")[0]["update"] == len(seen.events("update")) == 3
    assert seen.events("exit")[0]["status"] == 0


@pytest.mark.slow
def test_a_process_that_catches_its_end_is_ended(tmp_path: Path) -> None:
    script = """
        swallowed = 0
        while True:
            try:
                for i in range(10):
                    model(torch.ones(1, 4)).sum().backward()
                    optimizer.step()
            except BaseException:
                swallowed += 1
                print("swallowed", swallowed, flush=True)
    """
    begin = "model = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    seen = observe(tmp_path, begin + dedent(script), SHOESTRING_SIMULATOR_UPDATES="3")
    assert seen.result.returncode == 0
    assert 1 <= seen.result.stdout.count("swallowed") < 10
    assert len(seen.events("stopped")) == 1


def test_compiled_modules_are_not_disturbed(tmp_path: Path) -> None:
    script = """
        import warnings
        warnings.filterwarnings("error", message=".*global hooks.*")
        inner = nn.Linear(4, 1)
        inner.compile(backend="eager", fullgraph=True)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        both = torch.compile(lambda x: inner(torch.relu(x)).sum(), backend="eager", fullgraph=True)
        for _ in range(2):
            (compiled(torch.ones(2, 4)).mean() + both(torch.ones(2, 4))).backward()
            optimizer.step()
        with torch.no_grad():
            compiled(torch.ones(2, 4))
            both(torch.ones(2, 4))
    """
    seen = observe(tmp_path, LOOP + dedent(script))
    assert seen.result.returncode == 0, seen.result.stderr
    assert len(seen.events("update")) == 2
    assert seen.phases() == [("loading", 0), ("training", 1), ("evaluation", 3)]


@pytest.mark.slow
def test_workers_that_are_forked_write_nothing(tmp_path: Path) -> None:
    script = """
        import multiprocessing
        update()
        def work():
            open("by_worker", "w").write("text")
            update()
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
        update()
    """
    seen = observe(tmp_path, LOOP + dedent(script))
    assert [event["update"] for event in seen.events("update")] == [1, 2], seen.result.stderr


@pytest.mark.slow
def test_nothing_is_written_before_a_device_is_used(tmp_path: Path) -> None:
    assert observe(tmp_path, LOOP + "\nupdate()\n", BEGIN).processes == []


@pytest.mark.slow
def test_the_observation_begins_when_torch_is_imported_completely(tmp_path: Path) -> None:
    # A finder stands in for the simulator, whose call comes while `import torch` runs its own imports.
    begin = (
        BEGIN.replace("import torch\n", "", 1).replace("load()\n", "", 1).replace("def use_device", "\ndef use_device")
    )
    script = """
        import sys
        class Early:
            def find_spec(self, name, path=None, target=None):
                if name == "torch.nn":
                    sys.meta_path.remove(self)
                    load()
                    assert "_shoestring_inside.process" not in sys.modules
        sys.meta_path.insert(0, Early())
        import torch
        import begin
        begin.torch = torch
        assert type(torch.__spec__).__name__ == "ModuleSpec" and not torch.__spec__._initializing
        use_device()
    """
    seen = observe(tmp_path, dedent(script) + LOOP + "\nupdate()\n", begin)
    assert seen.result.returncode == 0, seen.result.stderr
    assert len(seen.events("update")) == 1


def test_exceptions_of_the_script_and_of_threads(tmp_path: Path) -> None:
    script = """
        import threading
        def fails():
            raise torch.OutOfMemoryError("CUDA out of memory")
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
        sys.excepthook = lambda *_: print("the script's own hook")
        try:
            fails()
        except RuntimeError as error:
            raise KeyError("lost") from error
    """
    seen = observe(tmp_path, "import sys\n" + dedent(script))
    assert "the script's own hook" in seen.result.stdout
    thread, ended = seen.events("exception")
    assert thread["type"] == "torch.OutOfMemoryError" and thread["out_of_memory"]
    assert ended["type"] == "KeyError" and ended["out_of_memory"]
    assert ended["stack"][0]["file"].endswith("script.py")
    assert seen.events("exit")[0]["status"] == 1


def test_out_of_memory_names_the_holders(tmp_path: Path) -> None:
    begin = BEGIN + dedent("""
        import torch
        def attach(observer):
            torch._C.observer = observer
        torch._C._cuda_attach_out_of_memory_observer = attach
        torch._C._cuda_record_memory_history = lambda *args: None
        torch._C._cuda_memoryStats = lambda device: {"allocated_bytes": {"all": {"current": 40 + device}}}
        use_device()
        library = torch.nn.functional.__file__.replace("torch/", "other-packages/")
        def snapshot(tensors, line):
            frames = [{"filename": library, "line": 7, "name": "layer"}, {"filename": line, "line": 3, "name": "f"}]
            blocks = [{"address": t.untyped_storage().data_ptr(), "size": 64, "state": "active_allocated",
                       "frames": frames if i else []} for i, t in enumerate(tensors)]
            blocks.append({"address": 1, "size": 5, "state": "inactive", "frames": []})
            segment = {"device": 0, "address": 0, "blocks": blocks}
            torch._C._cuda_memorySnapshot = lambda *_: {"segments": [segment]}
        """)
    script = """
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
        weight = model[0].weight
        kept = torch.ones(3)
        snapshot([weight.grad, weight, optimizer.state[weight]["exp_avg"], kept], __file__)
        def asks():
            torch._C.observer(0, 1000, 2000, 30)
        asks()
        torch.cuda.memory._record_memory_history()
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x
            @staticmethod
            def backward(ctx, gradient):
                asks()
                return gradient
        Fails.apply(torch.ones(2, requires_grad=True)).sum().backward()
    """
    seen = observe(tmp_path, LOOP + dedent(script), begin)
    first, second = seen.events("out_of_memory")
    assert seen.result.returncode == 0, seen.result.stderr
    assert (first["update"], first["phase"], first["history"]) == (3, "training", "own")
    assert (first["requested_bytes"], first["free_bytes"], first["allocated_bytes"]) == (1000, 30, 40)
    assert first["stack"][0]["function"] == "asks" and first["own_frame"] == first["stack"][0]
    rows = {row["kind"]: row for row in first["holders"]}
    assert sorted(rows) == ["gradients", "optimizer states", "other", "weights"]
    assert rows["gradients"]["function"] == "(backward)" and rows["gradients"]["file"].endswith("script.py")
    assert (rows["weights"]["line"], rows["weights"]["function"]) == (3, "f")
    assert rows["weights"]["library"][0]["function"] == "layer"
    assert second["in_backward"] and second["history"] == "script"
