"""The datasets of a run as Kaggle lists their files, and the number of rows that these files have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoestring.base.errors import UsageError
from shoestring.base.failures import recipe_errors
from shoestring.recipe.dataset_paths import DatasetPath
from shoestring.recipe.options import LoadedRecipe
from shoestring.remote.kaggle.client import Client, KaggleError
from shoestring.remote.kaggle.client_process import is_at_or_below

MAX_FILES = 20_000
"""The longest list of files that is read: a hundred requests."""


@dataclass(frozen=True, kw_only=True)
class Attached:
    """A path in a dataset, with the beginning of the list of the dataset's files, as far as it was needed."""

    source: DatasetPath
    argument: str
    """What the command has it as: `--data owner/slug`, or an option and its value."""
    is_there: bool
    """Whether there is such a dataset that the account may read, as far as is known."""
    files: Mapping[str, int] = field(default_factory=dict)
    """The bytes of its files by path."""
    error: str = ""
    """Why Kaggle did not list the files, if it did not."""

    @property
    def is_complete(self) -> bool:
        """Whether the list may be complete: it did not end because it was too long."""
        return not self.error and len(self.files) <= MAX_FILES

    @property
    def data_files(self) -> dict[str, int]:
        """The bytes of the files at or below the path of the data, by their paths relative to it."""
        path = self.source.path
        if path is None or self.source.is_whole:
            return dict(self.files)
        return {
            name.removeprefix(f"{path}/") if name != path else name.rpartition("/")[2]: size
            for name, size in self.files.items()
            if is_at_or_below(path, name)
        }

    def problems(self) -> Iterator[str]:
        """Yield why the dataset cannot be attached."""
        if not self.is_there:
            yield f"{self.argument}: there is no such dataset that your account may read"
        elif not self.source.is_whole and self.is_complete and not self.data_files:
            listed = ", ".join(sorted(self.files)[:5]) or "nothing"
            yield f"{self.argument}: the dataset has no such file or folder; it has {listed}"


def list_files(client: Client, source: DatasetPath, argument: str, *, for_rows: bool) -> Attached:
    """List the files of a dataset: all of them `for_rows`, else up to the path of the data. `argument` is what the
    command has it as.

    Raises KaggleError if nobody is signed in.
    """
    is_existence_enough = not for_rows and source.is_whole
    try:
        files = client.dataset_files(
            source.dataset,
            max_files=0 if is_existence_enough else MAX_FILES,
            path=None if for_rows else source.path,
        )
    except KaggleError as error:
        if error.kind == "account":
            raise
        return Attached(source=source, argument=argument, is_there=True, error=error.message)
    return Attached(
        source=source,
        argument=argument,
        is_there=files is not None,
        files={str(file["name"]): int(file["bytes"]) for file in files or ()},
    )


def count_rows(loaded: LoadedRecipe, attached: Attached) -> int:
    """Return the number of rows of the training data, by the list of its files.

    Raises UsageError if they do not tell, with the two ways to plan for these data nevertheless.
    """
    parts, dataset = loaded.parts, attached.source.dataset
    if attached.error:
        reason = f"Kaggle has not listed the files of {dataset}: {attached.error}"
    elif parts.data.count_rows is None:
        reason = f"{loaded.name} cannot tell it from the names and sizes of files"
    elif not attached.is_complete:
        reason = f"{dataset} has more than {MAX_FILES:,} files, of which no complete list is read"
    else:
        with recipe_errors(f"count_rows() of {loaded.name} failed"):
            rows = parts.data.count_rows(attached.data_files)
        if rows is not None and rows > 1:
            return rows
        reason = f"the names and sizes of the {len(attached.data_files):,} files of the data do not tell it"
    raise UsageError(
        f"the number of rows of {dataset} is not known, without which nothing can be planned for it",
        problems=[reason, f"a row is {parts.data.row}"],
        hint=f"--set rows=N; or, where the data are, shoestring check {loaded.name} --set data=PATH --lengths FILE, "
        "then here --set lengths=FILE",
    )
