"""What a run's directory contains: one row for each file and folder.

A new file is added here. Its columns then decide whether it is copied, handed over to the next session on Kaggle or
removed if space is short; a link under its name is refused, and the page of a run's directory has it. Only the program
of a session on Kaggle has names of its own, because it runs before Shoestring is installed
(`remote/kaggle/kernel/program/previous.py`); `tests/remote/test_run_contents.py` compares them.
"""

import re
from dataclasses import dataclass
from typing import Literal

from shoestring.training.checkpoint.manifest import FILE, MANIFEST, STAGED_FILE
from shoestring.training.checkpoint.names import SAVED
from shoestring.training.monitor.sinks.names import SINKS

IMAGE = r"[0-9]{1,18}-[0-9]{1,3}\.(?:png|jpg)"
"""The image of an example of an evaluation."""

Command = Literal["train", "restore", "fetch"]

_MANIFEST = re.escape(MANIFEST)
_SETS = (SAVED.pattern, _MANIFEST, FILE, STAGED_FILE.pattern)
"""What folders of checkpoints and weights contain, with what killed processes have left there."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file or a folder in a run's directory."""

    name: str
    kind: Literal["file", "log", "folder"] = "file"
    """A log is a file to which lines are appended, so that its last one may be incomplete."""
    content: str
    """What it is, in Markdown, for the page of a run's directory."""
    below: tuple[str, ...] = ()
    """Regular expressions for the names in a folder, at any depth."""
    is_replaced: bool = False
    """Whether it is written under its temporary name, and then renamed."""
    marks_run: bool = False
    """Whether a directory in which it is counts as a run, whatever else is missing."""
    before_plan: frozenset[Command] = frozenset()
    """The commands that accept it in a directory without a plan. `train` and `restore` accept all hidden names too."""
    backup: Literal["no", "all", "newest"] = "no"
    """Whether a backup copies it; of the checkpoints only the newest one."""
    on_kaggle: Literal["removed", "left", "continued"] = "removed"
    """Whether a session on Kaggle leaves it in its output, and whether the next session then copies it from there."""
    if_damaged: Literal["", "cannot continue", "is written again"] = ""
    """What follows if the copy from an earlier session on Kaggle is damaged; checkpoints are verified one by one."""
    is_expendable: bool = False
    """Whether a session on Kaggle drops it if its output is too large."""
    has_manifests: bool = False
    """Whether every folder in it with weights has a manifest (`checkpoint/manifest.py`)."""

    @property
    def is_folder(self) -> bool:
        return self.kind == "folder"

    @property
    def temporary_name(self) -> str:
        """A regular expression for the name while it is written; that of a file ends with the id of the process."""
        return rf"\.{re.escape(self.name)}" + ("" if self.is_folder else r"\.[0-9]+")


PLAN = Entry(
    name="plan.json",
    content="the recipe, its options and the plan ([its keys](json.md#plan)); its `verdict` is `not estimated` if the "
    "update cannot be traced, with `not_estimated` (why) and `measured` (the microbatches that were tried: bytes and "
    "seconds) in place of predictions",
    is_replaced=True,
    marks_run=True,
    backup="all",
    on_kaggle="continued",
    if_damaged="cannot continue",
)
STATE = Entry(
    name="state.json",
    content="`finished`, `paused` or `failed`, the update reached, the reason, and what to do next",
    is_replaced=True,
    marks_run=True,
    before_plan=frozenset({"train", "restore"}),
    backup="all",
    on_kaggle="continued",
    if_damaged="cannot continue",
)
CONFIG = Entry(
    name="run.toml",
    content="what the run was started with, for `--config` ([configuration file](index.md#configuration-file))",
    is_replaced=True,
    backup="all",
    on_kaggle="continued",
)
EVENTS = Entry(
    name="events.jsonl",
    kind="log",
    content="the record of the run: one line for each event ([Events](events.md))",
    is_replaced=True,
    marks_run=True,
    backup="all",
    on_kaggle="continued",
)
LEDGER = Entry(
    name="ledger.json",
    content="what each session cost: hours, GPU hours, seconds by cause",
    is_replaced=True,
    marks_run=True,
    backup="all",
    on_kaggle="continued",
)
CHECKPOINTS = Entry(
    name="checkpoints",
    kind="folder",
    content="`update-00001200/` has everything to resume exactly: `manifest.json` with digests, `model.safetensors`, "
    "`optimizer.safetensors`, `state.json`; with `ema` also `averaged.safetensors`",
    below=_SETS,
    marks_run=True,
    backup="newest",
    on_kaggle="continued",
    has_manifests=True,
)
LIGHT = Entry(
    name="light",
    kind="folder",
    content="weights to use, of the last epoch; `light/update-N/` with `keep_light`",
    below=_SETS,
    marks_run=True,
    backup="all",
    on_kaggle="continued",
    if_damaged="is written again",
    has_manifests=True,
)
BEST = Entry(
    name="best",
    kind="folder",
    content="weights to use, of the best epoch",
    below=_SETS,
    marks_run=True,
    backup="all",
    on_kaggle="continued",
    if_damaged="is written again",
    has_manifests=True,
)
PREPROCESSING = Entry(
    name="preprocessing",
    kind="folder",
    content="what predictions need besides the weights, as it was in training: a scaler, labels, a tokenizer",
    below=(_MANIFEST,),
    is_replaced=True,
    marks_run=True,
    backup="all",
    on_kaggle="continued",
)
REPORT = Entry(
    name="report.html",
    content="the report, written by `shoestring report` ([report](../guides/report.md))",
    is_replaced=True,
    on_kaggle="continued",
)
EVIDENCE = Entry(
    name="evidence",
    kind="folder",
    content="images of the examples that the report shows: of the best epoch and of the test part",
    below=(r"(?:validation|test)-[0-9]{8,18}", IMAGE),
    on_kaggle="continued",
    is_expendable=True,
)
LOGS = Entry(
    name="logs",
    kind="folder",
    content="what `--log` writes: `logs/tensorboard` for `tensorboard --logdir`, `logs/csv/metrics.csv` with one row "
    "for each number. Each update is there once, however often the run was killed; a log is made from `events.jsonl` "
    "and can be deleted",
    below=tuple(SINKS),
    on_kaggle="continued",
    is_expendable=True,
)
FAILED = Entry(
    name="failed",
    kind="folder",
    content="`update-N.json`: the samples of an update without finite numbers, and the command that replays it; "
    "`traceback.txt`: of the last error in the recipe's code",
    below=(r"update-[0-9]+\.json", r"\.update-[0-9]+\.json\.[0-9]+", r"traceback\.txt"),
    marks_run=True,
    on_kaggle="left",
    is_expendable=True,
)
EXPORT = Entry(
    name="export",
    kind="folder",
    content="`shoestring export`: a folder for each format, with a model card; `export.json` has the digests of its "
    "files",
)
KAGGLE = Entry(
    name="kaggle",
    kind="folder",
    content="the state of the run's sessions on Kaggle ([files](../guides/kaggle.md#files))",
    below=(r"chain\.json|\.chain\.json\.[0-9]+|session-[0-9]+\.json|shoestring\.log|stop|run|incoming",),
    before_plan=frozenset({"train", "fetch"}),
)
BACKUP = Entry(
    name="backup.json",
    content="the id of a run that `--backup` copies, by which its copies are known as its own, and where they are",
    is_replaced=True,
)
PLANNING = Entry(
    name="planning.jsonl",
    kind="log",
    content="the traced updates of a plan that a session's end has interrupted",
    marks_run=True,
    before_plan=frozenset({"train", "restore"}),
)
LOCK = Entry(
    name="lock",
    content="locked by the process that trains, so that no other one trains the same run",
    before_plan=frozenset({"train", "restore", "fetch"}),
)
LOCK_FILE = Entry(
    name=".lock",
    content="the lock on a file system that cannot lock files",
    is_replaced=True,
    before_plan=frozenset({"fetch"}),
)
RESERVE = Entry(
    name=".state.json.reserve",
    content="during a session, the space to write `state.json` on a full disk",
)
TRAINER = Entry(
    name=".trainer",
    kind="folder",
    content="temporary files of a library's trainer",
)
RESTORING = Entry(
    name=".restoring",
    kind="folder",
    content="while `--from` restores a copy, its files, until all have arrived and are moved to their places",
    below=(r"run|complete",),
    before_plan=frozenset({"train", "restore"}),
)

ENTRIES = (
    *(PLAN, STATE, CONFIG, EVENTS, LEDGER, CHECKPOINTS, LIGHT, BEST, PREPROCESSING, REPORT, EVIDENCE, LOGS, FAILED),
    *(EXPORT, KAGGLE, BACKUP, PLANNING, LOCK, LOCK_FILE, RESERVE, TRAINER, RESTORING),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}

LEFTOVER = re.compile(
    "|".join(entry.temporary_name for entry in ENTRIES if entry.is_replaced and not entry.is_folder and entry != REPORT)
    + r"|\.update-[0-9]+\.json\.[0-9]+|report\.html\.part|\.shared-[0-9a-f]{32}"
)
"""Files of killed processes: `.shared-...` is of processes that meet in the directory, `.part` of earlier versions."""
REPORT_LEFTOVER = re.compile(REPORT.temporary_name)
"""One of a report, which is written without the lock, so its writer may be alive."""
OWN = re.compile(
    "|".join(
        [
            *(re.escape(entry.name) for entry in ENTRIES),
            *(entry.temporary_name for entry in ENTRIES if entry.is_replaced),
            LEFTOVER.pattern,
        ]
    )
)
"""The names of a run's own files and folders in its directory. Everything else there belongs to the user."""
OWN_BELOW = (OWN, *(re.compile(names) for entry in ENTRIES for names in entry.below))
"""The names in the folders of the run's directory; in that of Kaggle another run's directory may be."""
EVIDENCE_FOLDER = re.compile(EVIDENCE.below[0])


def accepted_before_plan(command: Command) -> set[str]:
    """Return the names that a command accepts in a directory without a plan."""
    return {entry.name for entry in ENTRIES if command in entry.before_plan}
