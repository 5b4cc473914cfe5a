"""Every place that starts a process, with what Ctrl-C in a terminal does to it in its first second.

The terminal sends SIGINT to the group of the command. A process of Python ignores it only after it has imported, so one
that has to outlive Ctrl-C is started in a group or a session of its own.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

OWN_GROUP = "in a group of its own: the command that has started it ends it"
WITH_COMMAND = "ends with the command, which does not outlive Ctrl-C there either"
ON_KAGGLE = "a session on Kaggle, which has no terminal"
BLOCKED = "a copy of a process that has blocked the signals, or has ignored them"
STARTS = {
    "shoestring/answers/live.py": {"train_in_child": OWN_GROUP},
    "shoestring/planning/simulator/compiling.py": {"compiling": OWN_GROUP, "run": OWN_GROUP},
    "shoestring/planning/simulator/pip.py": {"run_pip": WITH_COMMAND},
    "shoestring/planning/simulator/prepare.py": {"make_environment": WITH_COMMAND},
    "shoestring/planning/simulator/stacks.py": {"_interpreter": WITH_COMMAND, "install": WITH_COMMAND},
    "shoestring/planning/simulator/symbols.py": {"_output": WITH_COMMAND},
    "shoestring/planning/simulator/torch_builds.py": {"look": WITH_COMMAND},
    "shoestring/planning/trace/child.py": {"_fork": BLOCKED},
    "shoestring/planning/trace/child_process.py": {
        "_spawn": OWN_GROUP,
        "_os_fork": "ignores it at its first request; before, its parent has the same signal and gives its answer up",
    },
    "shoestring/remote/backup/background.py": {"_watch": "the same process, which ignores the signal, starts anew"},
    "shoestring/remote/backup/processes.py": {"_start": OWN_GROUP},
    "shoestring/remote/kaggle/client.py": {"_started": "ends, as the request does; the next request starts another"},
    "shoestring/remote/kaggle/kernel/program/checkpoints.py": {"call_leaving": ON_KAGGLE},
    "shoestring/remote/kaggle/kernel/program/installation.py": {"pip": ON_KAGGLE},
    "shoestring/remote/kaggle/kernel/program/machine.py": dict.fromkeys(
        ("facts", "gpu_capabilities", "torch_archs"), ON_KAGGLE
    ),
    "shoestring/remote/kaggle/kernel/program/output.py": {"write_report": ON_KAGGLE},
    "shoestring/remote/kaggle/kernel/program/training.py": {"train": OWN_GROUP},
    "shoestring/remote/wheels.py": {"_download": WITH_COMMAND},
    "shoestring/runs/check/build.py": {"probe_build": WITH_COMMAND},
    "shoestring/runs/check/child.py": {"run_child": OWN_GROUP},
    "shoestring/runs/rehearse/guard.py": {"_start": OWN_GROUP},
    "shoestring/runs/rehearse/processes.py": {"__init__": OWN_GROUP},
    "shoestring/runs/train/supervisor.py": {"supervise": BLOCKED},
    "shoestring/runs/train/parallel.py": {"train_in_ranks": "torch's agent starts each rank in a session of its own"},
    "shoestring/techniques/compiled.py": {"toolchain": OWN_GROUP},
    "shoestring/training/data/workers.py": {
        "_tracking_context": "inherits the handler of training, and takes a group of its own as it begins"
    },
    "shoestring/training/monitor/sinks/processes.py": {"_start": OWN_GROUP},
}
FUNCTIONS = {
    *(f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")),
    *(f"os.{name}" for name in ("fork", "forkpty", "execv", "execve", "execvp", "posix_spawn", "system", "popen")),
    *(f"multiprocessing.{name}" for name in ("Process", "Pool", "get_context")),
    "ProcessPoolExecutor",
    "Agent",
}


def starts(source):
    """Yield the name of the function around each call that starts a process, and whether it gets a group of its own."""
    pending = [("", ast.parse(source))]
    while pending:
        name, node = pending.pop()
        if isinstance(node, ast.FunctionDef):
            name = node.name
        if isinstance(node, ast.Call) and ast.unparse(node.func) in FUNCTIONS:
            yield name, bool({"process_group", "start_new_session"} & {keyword.arg for keyword in node.keywords})
        pending += [(name, child) for child in ast.iter_child_nodes(node)]


def test_what_ctrl_c_does_to_each_process_is_known():
    groups = {
        (path.relative_to(SOURCE).as_posix(), name): has_group
        for path in SOURCE.rglob("*.py")
        for name, has_group in starts(path.read_text(encoding="utf-8"))
    }
    listed = {(path, name): text for path, names in STARTS.items() for name, text in names.items()}
    assert groups.keys() == listed.keys()
    assert [place for place, has_group in groups.items() if has_group != (listed[place] == OWN_GROUP)] == []


def test_starts_are_recognized():
    source = """
def plain(command):
    subprocess.run(command)
def grouped(command):
    with subprocess.Popen(command, process_group=0): psutil.Process(1)
def forked():
    def inner(): os.fork()
"""
    assert sorted(starts(source)) == [("grouped", True), ("inner", False), ("plain", False)]
