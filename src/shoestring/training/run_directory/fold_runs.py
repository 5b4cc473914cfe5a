"""The folder of a cross-validation: where the run of each fold is."""

import re
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.system_errors import explaining
from shoestring.recipe.folds import Fold
from shoestring.training.run_directory.directory import RunDirectory

OUT_OF_FOLD = "out_of_fold.jsonl"
"""The predictions of each sample by the model that was not trained on it."""
META = f"{OUT_OF_FOLD}.meta.json"
"""Which weights these are of. It is written last."""
_OWN = re.compile(rf"fold-\d+|{re.escape(OUT_OF_FOLD)}(\.meta\.json)?|report\.html|\..*")


def run_of(folder: Path, fold: Fold) -> RunDirectory:
    """Return the run of a fold."""
    return RunDirectory(folder / f"fold-{fold.number}")


def runs_in(folder: Path) -> list[RunDirectory]:
    """Return the runs of the folds that have begun, in their order; none if the folder is no cross-validation.

    A run of this name that trains another fold, or all data, is none of them.
    """
    if RunDirectory(folder).plan_file.exists() or not folder.is_dir():
        return []
    numbers = [match[1] for path in folder.iterdir() if (match := re.fullmatch(r"fold-([1-9]\d{0,2})", path.name))]
    runs = [(number, RunDirectory(folder / f"fold-{number}")) for number in sorted(map(int, numbers))]
    return [run for number, run in runs if _trained_fold(run)[0] == number]


def _trained_fold(run: RunDirectory) -> tuple[int | None, int | None]:
    """Return which fold a stored run trains, and of how many: None of what its options do not say."""
    stored = run.plan()
    options = (stored and stored.options) or {}
    fold, count = options.get("fold"), options.get("folds")
    if isinstance(fold, int):
        return fold + 1, count if isinstance(count, int) else None
    try:
        parsed = Fold.parse(fold) if isinstance(fold, str) else None
    except ValueError:
        parsed = None
    return (parsed.number, parsed.count) if parsed else (None, None)


def create(folder: Path, count: int) -> None:
    """Create the folder for so many folds. Raises UsageError if it has something else, or another number of folds."""
    with explaining(f"{folder} cannot be used for the runs of folds"):
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in folder.iterdir() if not _OWN.fullmatch(path.name))
    if foreign:
        raise UsageError(
            f"{folder} has something else than the runs of folds: {', '.join(foreign[:5])}",
            hint="choose an empty or new directory: --run runs/NAME",
        )
    for run in map(RunDirectory, sorted(folder.glob("fold-*"))):
        number, trained_count = _trained_fold(run)
        if run.plan_file.exists() and (number is None or trained_count not in (None, count)):
            trained = "no fold" if number is None else f"a fold of {trained_count}"
            raise UsageError(
                f"{run.path} trains {trained}, and {count} folds were asked for",
                hint="choose another directory: --run runs/NAME"
                + ("" if number is None else f"; or continue with --folds {trained_count}"),
            )


def naming_folds(path: Path, hint: str) -> str:
    """Return the hint of an error that `path` is no run; another one if it has the runs of folds."""
    runs = runs_in(path)
    return f"it has the runs of {len(runs)} folds: name one of them, such as {runs[0].path}" if runs else hint
