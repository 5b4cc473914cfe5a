"""What removes, renames or truncates files is listed here with the reason why it cannot meet a file of the user.

In a run's directory `remove_own` removes files, which knows the names of a run alone. Everything else is a row.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import shoestring
import shoestring_recipes

SOURCES = [Path(package.__file__).parent for package in (shoestring, shoestring_recipes)]
METHODS = {"rmtree", "unlink", "rmdir", "removedirs", "rename", "renames", "replace", "truncate", "ftruncate", "move"}
FUNCTIONS = {"remove", "remove_file", "rmtree", "unlink"}
"""Of the module `checkpoint/files.py` and of the standard library, imported by their names."""
OWN = {"remove_own", "remove_own_renamed"}
MODULES = {"os", "shutil"}


def removals(module: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call that removes, renames or truncates a file, with the name of the function around it."""
    pending: list[tuple[str, ast.AST]] = [("", module)]
    while pending:
        name, node = pending.pop()
        if isinstance(node, ast.FunctionDef):
            name = node.name
        if isinstance(node, ast.Call) and _removes(node):
            yield name, node
        pending += [(name, child) for child in ast.iter_child_nodes(node)]


def _removes(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in FUNCTIONS | OWN
    if not isinstance(function, ast.Attribute):
        return False
    of_module = isinstance(function.value, ast.Name) and function.value.id in MODULES
    if function.attr == "remove":
        return of_module  # else that of a list
    if function.attr in ("replace", "rename", "move"):  # one path; texts, settings and records have other arguments
        is_record = isinstance(function.value, ast.Name) and function.value.id in ("dataclasses", "offload", "place")
        has_path = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
        return of_module or (has_path and not is_record)
    return function.attr in METHODS


TEMPORARY = "a temporary name that this function, or the process that was killed, has made"
FOLDER = "a temporary folder that was created for this alone"
CACHE = "in a folder of Shoestring's in the cache of the user"
KERNEL = "a session on Kaggle, in whose working folder nothing else is"
COPIES = "the digest or the number of a copy, in the place of the copies"
INCOMING = "a folder of downloads below kaggle/, with a file that says of which session"
OWN_NAME = "a file under one name of a run, which the same module writes"
REASONS = {
    "hardware/cpu_rates.py": {"write_cached": TEMPORARY},
    "hardware/measured_file.py": {"write_at_once": TEMPORARY, "_temporary": TEMPORARY},
    "integrations/huggingface/adapters_export.py": {"save_adapter": FOLDER},
    "planning/simulator/build.py": {"_compile_shared": FOLDER, "_remove_remains": CACHE, "_make": CACHE},
    "planning/simulator/compile_guard.py": {"main": FOLDER},
    "planning/simulator/prepare.py": {"_install_wheel": CACHE},
    "planning/simulator/stacks.py": {"install": CACHE},
    "remote/backup/folder_store.py": {"remove": COPIES, "_remove_unfinished": TEMPORARY},
    "remote/backup/kaggle_store.py": dict.fromkeys(("remove", "close", "write", "_upload", "_downloaded"), FOLDER),
    "remote/kaggle/chain.py": {"run_chain": OWN_NAME},
    "remote/kaggle/fetching.py": {
        **dict.fromkeys(("inspect_output", "download_verified"), "a file that was downloaded under a name with .part"),
        **dict.fromkeys(("fetch_run", "_remove_others"), INCOMING),
    },
    "remote/kaggle/following.py": {"_delete": OWN_NAME},
    "remote/kaggle/kernel/leaving.py": {"prune": KERNEL},
    "remote/kaggle/kernel/program/installation.py": {"install": KERNEL},
    "remote/kaggle/kernel/program/machine.py": {"probe_disk": KERNEL},
    "remote/kaggle/kernel/program/output.py": {"leave": KERNEL, "limit_files": KERNEL},
    "remote/kaggle/kernel/program/previous.py": {"copy_previous": KERNEL},
    "remote/kaggle/kernel/program/session.py": {"replace_session_file": KERNEL, "write": KERNEL},
    "remote/kaggle/upload.py": {"_upload": FOLDER},
    "remote/notebook/session.py": {"continue_attached_run": "a run that is there is renamed and not removed"},
    "remote/temporary.py": {"temporary_folder": "a folder of an ended process of this user, by its name"},
    "remote/wheels.py": {"_download": FOLDER},
    "runs/check/disk.py": {"probe_disk": "a file that this function has created, which fails if there is one"},
    "runs/export/folder.py": {
        "_rename": "the folder of an export, all of whose files are known by their digests",
        **dict.fromkeys(("writing", "_remove_leftovers"), TEMPORARY),
    },
    "runs/folds/cross_validation.py": {"cross_validate": "a folder that is empty"},
    "runs/folds/out_of_fold.py": {"write_out_of_fold": OWN_NAME},
    "runs/predict/output.py": {
        "_meta": TEMPORARY,
        "_remove_incomplete_row": "the end of a file that is known by the digest of its rows",
    },
    "runs/rehearse/guard.py": {"stay": FOLDER},
    "runs/train/meeting.py": {"_announce": TEMPORARY},
    "training/checkpoint/files.py": {
        **dict.fromkeys(("remove_own", "remove_own_renamed"), "a name of a run"),
        **dict.fromkeys(("remove", "remove_file"), "used by the rows of this table"),
        "replace": TEMPORARY,
    },
    "training/checkpoint/fileset.py": {"replace_weights": OWN_NAME, "complete_replacement": OWN_NAME},
    "training/checkpoint/folder.py": {"write_folder": TEMPORARY},
    "training/checkpoint/light.py": {"remove_leftovers": "a folder that is empty"},
    "training/checkpoint/reserved.py": dict.fromkeys(("release", "_write_over", "replace_text"), OWN_NAME),
    "training/checkpoint/store.py": {"_write_checkpoint": OWN_NAME, "_clean_up": OWN_NAME},
    "training/data/staging.py": {
        **dict.fromkeys(("_copy", "stage"), TEMPORARY),
        "_remove_stale_files": "in the folder of the copies, which has no other content",
    },
    "training/monitor/sinks/csv_file.py": {"__init__": OWN_NAME},
    "training/monitor/sinks/tensorboard.py": {"__init__": OWN_NAME},
    "training/run_directory/arriving.py": {
        "move_entries": "a file of a run in place of that of the run before",
        "remove_empty": "a folder that is empty",
    },
    "training/run_directory/directory.py": {
        "trainer_folder": "a folder that is empty",
        "_remove_if_unused": "the lock that this process holds, in a folder without anything else",
    },
    "training/run_directory/lock.py": {"locked": OWN_NAME},
    "training/run_directory/trust.py": {"_add": TEMPORARY},
}
NAMES = {"OWN", "SAVED", "STAGED_FILE", "LEFTOVER", "REPORT_LEFTOVER", "EVIDENCE_FOLDER", "names"}
"""The names with which `remove_own` is called: those of the table of a run's directory, and of its folders."""


def test_every_removal_has_a_reason() -> None:
    seen = set()
    for folder in SOURCES:
        for path in folder.rglob("*.py"):
            for name, call in removals(ast.parse(path.read_text(encoding="utf-8"))):
                if ast.unparse(call.func) not in OWN:
                    seen.add((str(path.relative_to(folder)), name))
                    continue
                names = {node.id for node in ast.walk(call.args[-1]) if isinstance(node, ast.Name)} - {"is_report"}
                assert names <= NAMES, f"{path}:{call.lineno}"
    listed = {(path, name) for path, names in REASONS.items() for name in names}
    assert seen - listed == set(), "use remove_own for a file of a run, or add the reason here"
    assert listed - seen == set(), "the reason is for a call that does not exist"


def test_removals_are_recognized() -> None:
    source = """
def own(path, folder, text):
    shutil.rmtree(path)
    os.remove(path)
    path.replace(folder)
    remove_own(path, OWN)
    def inner(): remove(path)
def other(text, items):
    text.replace("a", "b"), items.remove(1), dataclasses.replace(items, a=1), settings.replace(a=1)
"""
    assert sorted(name for name, _ in removals(ast.parse(source))) == ["inner", "own", "own", "own", "own"]
