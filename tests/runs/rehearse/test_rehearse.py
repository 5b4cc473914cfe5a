"""Scripts rehearsed by the command line. They need PyTorch's CUDA build: `make versions STACK=kaggle` has it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shoestring.planning.simulator.build import libraries
from shoestring.planning.simulator.torch_builds import read_build

PLAIN = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
size = int(sys.argv[1]) if len(sys.argv) > 1 else 64
for step in range(4):
    loss = model(torch.randn(size, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
model.eval()
with torch.no_grad():
    model(torch.randn(8, 256, device="cuda"))
torch.save(model.state_dict(), "model.pt")
"""


@pytest.fixture(scope="module", autouse=True)
def compiled():
    if not torch.version.cuda:
        pytest.skip("needs PyTorch's build with CUDA, which the stack kaggle has")
    libraries(read_build(Path(torch.__file__).parent))


@pytest.fixture
def rehearse(tmp_path):
    """A function that rehearses code or a command and returns the completed process, with its JSON if it has any."""

    def run(*arguments, code=None, status=0, as_json=True, on="kaggle-t4"):
        if code is not None:
            (tmp_path / "train.py").write_text(code)
            arguments = ("train.py", *arguments)
        command = [sys.executable, "-m", "shoestring", "rehearse", "--on", on, *arguments[:1]]
        command += [*(["--json"] if as_json else []), *arguments[1:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment)
        assert result.returncode == status, result.stdout[-2000:] + result.stderr[-4000:]
        result.answer = json.loads(result.stdout) if as_json and status < 2 else None
        return result

    return run


def test_plain_loop_is_answered_part_by_part(rehearse, tmp_path):
    result = rehearse("--total-updates", "1000", code=PLAIN)
    answer = result.answer
    assert (answer["fits"], answer["finished"], answer["end"], answer["updates"]) == (True, True, "finished", 4)
    assert [phase["name"] for phase in answer["phases"]] == ["loading", "training", "evaluation", "saving"]
    (device,) = answer["devices"]
    parameters = 256 * 1024 + 1024 + 1024 + 1
    assert 4 * 4 * parameters <= device["peak_allocated_bytes"] <= device["peak_reserved_bytes"] < 200 * 2**20
    assert answer["time"]["low_seconds"] < answer["time"]["update_seconds"] < answer["time"]["high_seconds"]
    assert answer["total_seconds"] == pytest.approx(1000 * answer["time"]["update_seconds"])
    assert answer["ends_in_time"] is True and answer["sessions"] == 1
    saved = (tmp_path / "model.pt").stat().st_size
    assert answer["disk_bytes"] == saved and answer["host_peak_bytes"] > 0
    # The script's own output does not mix with the answer.
    assert "loss" in result.stderr


def test_updates_end_the_script_and_its_own_output_is_its_own(rehearse):
    result = rehearse("--updates", "2", "--values", "all", code=PLAIN, as_json=False)
    assert result.stdout.count("loss") == 1 or result.stdout.count("loss") == 2
    assert "train.py" in result.stdout and "2 updates" in result.stdout


def test_out_of_memory_names_the_line_and_what_held_the_memory(rehearse):
    answer = rehearse("--", str(2 * 2**20), code=PLAIN).answer
    error = answer["out_of_memory"]
    assert (answer["fits"], answer["finished"], answer["end"]) == (False, False, "out of memory")
    assert (error["device"], error["update"], error["phase"]) == (0, 1, "training")
    line = PLAIN.splitlines().index('    loss = model(torch.randn(size, 256, device="cuda")).square().mean()') + 1
    own = [frame for frame in error["stack"] if frame["file"].endswith("train.py")]
    assert own[0]["line"] == line
    held = {(holder["file"], holder["line"]): holder["bytes"] for holder in answer["holders"]}
    assert max(held, key=held.get) == (own[0]["file"], line)
    assert any("microbatch of half the size" in text for text in answer["proposals"])


def test_error_that_the_script_handles_is_none(rehearse):
    code = """
import torch
for size in (2**35, 2**20):
    try:
        torch.empty(size, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
"""
    answer = rehearse(code=code).answer
    assert (answer["fits"], answer["finished"], answer["survived_out_of_memory"]) == (True, True, 1)
    assert answer["out_of_memory"] is None


def test_other_error_is_the_script_s_own(rehearse):
    code = PLAIN.replace("model.eval()", "raise ValueError('wrong data')")
    answer = rehearse(code=code, status=1).answer
    assert (answer["end"], answer["exit_status"], answer["fits"], answer["updates"]) == ("failed", 1, True, 4)
    assert answer["error"] == "ValueError: wrong data"


@pytest.mark.parametrize(
    ("code", "status", "end"),
    [
        ("print('no GPU')", 0, "finished"),
        ("import torch, os; torch.ones(1, device='cuda'); os._exit(0)", 0, "finished"),
        ("import torch, os; torch.ones(1, device='cuda'); os._exit(7)", 1, "failed"),
        ("import torch, os, signal; torch.ones(1, device='cuda'); os.kill(os.getpid(), signal.SIGSEGV)", 1, "failed"),
        ("import os; os.close(1); os.close(2)", 0, "finished"),
    ],
)
def test_scripts_that_end_in_unusual_ways_are_answered(rehearse, code, status, end):
    answer = rehearse(code=code, status=status).answer
    assert (answer["end"], answer["updates"]) == (end, 0)


def test_processes_of_a_launcher_use_a_gpu_each(rehearse, tmp_path):
    (tmp_path / "ranks.py").write_text(
        """
import os, torch
import torch.distributed as dist
from torch import nn
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(512, 512).cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    )
    answer = rehearse("torchrun", "--", "--standalone", "--nproc-per-node=2", "ranks.py", on="kaggle-t4x2").answer
    assert (answer["end"], answer["updates"]) == ("finished", 3)
    peaks = [device["peak_allocated_bytes"] for device in answer["devices"]]
    assert len(peaks) == 2 and min(peaks) > 2**20
    assert "exchange" in [part["name"] for part in answer["time"]["parts"]]


def test_recipe_is_trained_on_the_simulated_gpu(rehearse):
    answer = rehearse("temporal", "--set", "size=tiny", "--updates", "3").answer
    assert (answer["fits"], answer["updates"]) == (True, 3)


def test_ctrl_c_gives_the_answer_so_far_and_leaves_no_process(tmp_path):
    code = PLAIN.replace("range(4)", "range(10**9)").replace("print(", "0 and print(")
    (tmp_path / "train.py").write_text(code)
    command = [sys.executable, "-m", "shoestring", "rehearse", "train.py", "--on", "kaggle-t4", "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    # Rehearsals of other tests have their folders in another place.
    while time.monotonic() < deadline and not list(tmp_path.glob("rehearsal-*/records/statistics.*")):
        time.sleep(0.2)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors[-3000:]
    answer = json.loads(output)
    assert answer["end"] == "interrupted" and answer["updates"] > 0
