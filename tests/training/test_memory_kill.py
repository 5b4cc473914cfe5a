"""The kernel ends a session for lack of host memory: the next one begins with half the microbatch."""

import gc
import json
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from shoestring.training import memory_kill, record, setup
from shoestring.training.monitor import host_memory
from shoestring.training.monitor.events import read
from shoestring.training.monitor.host_memory import HostMemory
from tests.by_trainer import KINDS
from tests.sessions import session
from tests.training.test_oom import Stacked, events

GROUPS, LIMIT = Path("/sys/fs/cgroup/memory"), 600 * 2**20


def measurement(used=1, kills=None, group="", own=None):
    return HostMemory(used_bytes=used, limit_bytes=100, oom_kills=kills, group=group, process_bytes=own)


def session_events(number=1, *, at_start, later=(), stop=False, update=0, **facts):
    opening = {"update": update, "micro_batch": 8, **at_start.json(), **facts}
    yield {"time": 0.0, "session": number, "event": "session", **opening}
    for memory in later:
        yield {"time": 1.0, "session": number, "event": "progress", "update": 1, **memory.usage()}
    if stop:
        yield {"time": 2.0, "session": number, "event": "stop", "update": 1}


@pytest.mark.parametrize(
    ("last", "now", "is_kill"),
    [
        ({"at_start": measurement(95)}, measurement(), True),
        ({"at_start": measurement(50), "later": [measurement(95)]}, measurement(), True),
        ({"at_start": measurement(95), "later": [measurement(50)]}, measurement(), False),
        ({"at_start": measurement(50)}, measurement(), False),
        ({"at_start": measurement(95), "stop": True}, measurement(), False),
        ({"at_start": measurement(50, 3, "a")}, measurement(1, 4, "a"), True),
        ({"at_start": measurement(95, 3, "a")}, measurement(1, 3, "a"), False),
        ({"at_start": measurement(50, 3, "a")}, measurement(1, 4, "b"), False),  # another machine
        ({"at_start": measurement(95, 3, "a")}, measurement(1, 3, "b"), True),
        ({"at_start": measurement(50, 3, "a"), "stop": True}, measurement(1, 4, "a"), False),
    ],
)
def test_the_kernels_count_or_the_last_measurement_decides(last, now, is_kill):
    killed_before = list(session_events(at_start=measurement(95)))
    last_session = list(session_events(2, **last))
    kill = memory_kill.find_memory_kill([*killed_before, *last_session], now)
    assert bool(kill) == is_kill
    assert kill is None or (kill.session, kill.micro_batch) == (2, 8)
    note = {"time": 3.0, "session": 3, "event": "note", "message": "a session that failed before its first update"}
    assert memory_kill.find_memory_kill([*last_session, note], now) is None
    without_memory = [{**event, "host_bytes": None} for event in last_session]
    assert memory_kill.find_memory_kill(without_memory, now) is None


@pytest.mark.parametrize(
    ("killed_before", "last", "is_kill"),
    [
        ({"at_start": measurement(9, 2, "a", own=5), "stop": True}, {}, False),  # others were ended
        ({"at_start": measurement(9, 2, "a", own=5)}, {}, True),  # twice at the same update
        ({"at_start": measurement(9, 2, "a", own=5)}, {"update": 4}, False),
        ({"at_start": measurement(9, 3, "a", own=5)}, {}, False),
        ({"at_start": measurement(9, 2, "a", own=5), "stop": True}, {"processes": 4}, True),
        ({"at_start": measurement(9, 2, "a", own=5), "stop": True}, {"later": [measurement(95, own=40)]}, True),
    ],
)
def test_run_that_used_little_memory_is_suspected_only_when_it_is_repeated(killed_before, last, is_kill):
    """On a machine where others fill the memory, a run that somebody killed is not the one that the kernel ended."""
    earlier = list(session_events(**killed_before))
    sessions = [*earlier, *session_events(2, **{"at_start": measurement(50, 3, "a", own=5), **last})]
    assert bool(memory_kill.find_memory_kill(sessions, measurement(1, 4, "a", own=5))) == is_kill


class Killing(Stacked):
    """Its process is ended in the first microbatch of more than `limit` samples."""

    limit = 2

    def loss(self, model, batch):
        if len(batch[0]) > self.limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


def run_child(work):
    """Call `work` in a forked child; return the child's status."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    with suppress(BaseException), Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), 2)
        torch.set_num_threads(1)  # the threads of the parent do not exist in the child
        gc.freeze()  # nor can objects of the parent be collected that wait for such threads
        work()
        os._exit(0)
    os._exit(1)


def run_measured(run, used, kind):
    """Run a session in which `used` percent of the memory are in use."""
    for module in (record, setup):
        module.host_memory = lambda: measurement(used)
    session(Killing(), run, {"micro_batch": 8, "save_every_updates": 2}, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_session_begins_with_half_the_microbatch(tmp_path, kind):
    statuses = [run_child(partial(run_measured, tmp_path, used, kind)) for used in (50, 95, 95, 95)]
    assert statuses == [signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, 0]
    sizes = [(event["session"], event["micro_batch"]) for event in events(tmp_path, "session")]
    assert sizes == [(1, 8), (2, 8), (3, 4), (4, 2)]  # session 1 used little memory
    assert [(event["session"], event["micro_batch"], event["done"]) for event in events(tmp_path, "oom")] == [
        (3, 8, "microbatch 4"), (4, 4, "microbatch 2"),
    ]  # fmt: skip
    assert [event["micro_batch"] for event in events(tmp_path, "memory")] == [8, 8, 4, 2]
    notes = [event["message"] for event in events(tmp_path, "note")]
    assert sum("probably for lack of memory, because it used 95 B of 100 B" in note for note in notes) == 2
    checkpoint = json.loads((max((tmp_path / "checkpoints").glob("update-*")) / "state.json").read_text())
    assert (checkpoint.get("progress") or checkpoint)["fit"]["micro_batch"] == 2


def test_smallest_microbatch_gets_advice(tmp_path):
    class Normed(Stacked):
        def model(self):
            return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    class Whole(Stacked):
        whole_batch = True

    for recipe, micro_batch in ((Stacked(), 1), (Normed(), 2), (Whole(), Whole.effective_batch)):
        run = tmp_path / str(micro_batch)
        session(recipe, run, {"micro_batch": micro_batch}, stop="limit", at=3)
        lines = [event for event in read(run / "events.jsonl") if event["event"] != "stop"]
        lines = [{**event, **measurement(95).json()} for event in lines]
        (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        session(recipe, run, {"micro_batch": micro_batch})
        assert events(run, "oom") == [] and events(run, "session")[-1]["micro_batch"] == micro_batch
        advice = [event["message"] for event in events(run, "note") if "workers=0" in event["message"]]
        assert len(advice) == 1 and f"microbatch {micro_batch} is the smallest" in advice[0] and "100 B" in advice[0]


class Hungry(Stacked):
    """Its first microbatch needs 200 MiB for each sample."""

    is_first = True

    def loss(self, model, batch):
        if self.is_first:
            torch.ones(len(batch[0]), 50 * 2**20)
        self.is_first = False
        return super().loss(model, batch)


def test_kernel_ends_a_session_at_the_limit_of_its_control_group(tmp_path):
    """With a real limit of 600 MiB, and the kernel's count as the proof."""
    group = GROUPS / f"shoestring_test_{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no control group can be created here: {error}")

    def work():
        (group / "cgroup.procs").write_text(str(os.getpid()))
        session(Hungry(), tmp_path, {"micro_batch": 4})

    try:
        statuses = [run_child(work) for _ in range(2)]
    finally:
        group.rmdir()
    assert statuses == [signal.SIGKILL, 0]
    assert [event["done"] for event in events(tmp_path, "oom")] == ["microbatch 2"]
    assert all("the kernel ended it for lack of memory" in event["failure"] for event in events(tmp_path, "oom"))
    assert all(event["host_limit_bytes"] == LIMIT for event in events(tmp_path, "progress"))


def write(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_memory_of_the_control_group(tmp_path):
    version_2 = {
        "proc/self/cgroup": "0::/pod\n",
        "proc/sys/kernel/random/boot_id": "boot\n",
        "sys/fs/cgroup/pod/memory.max": "max\n",
        "sys/fs/cgroup/pod/memory.high": "1000\n",
        "sys/fs/cgroup/pod/memory.current": "900\n",
        "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 60\nactive_file 40\n",
        "sys/fs/cgroup/pod/memory.events": "low 0\noom 2\noom_kill 3\n",
    }
    memory = host_memory.host_memory(write(tmp_path / "2", version_2))
    assert (memory.used_bytes, memory.limit_bytes, memory.oom_kills) == (800, 1000, 3) and "boot" in memory.group
    assert not memory.is_near_limit
    version_1 = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "950\n",
        "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
    }
    memory = host_memory.host_memory(write(tmp_path / "1", version_1))
    assert (memory.used_bytes, memory.limit_bytes, memory.oom_kills) == (950, 1000, None)  # no identity of the boot
    assert memory.is_near_limit
    unlimited = host_memory.host_memory(tmp_path / "none")
    assert 0 < unlimited.used_bytes < unlimited.limit_bytes and unlimited.oom_kills is None
    assert HostMemory.from_event(unlimited.json()) == unlimited
    assert host_memory.tree_bytes() > 2**20
