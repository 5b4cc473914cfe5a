"""A page as a file: where it may be written."""

from collections.abc import Iterable
from pathlib import Path

from shoestring.answers.renderers.markup import Markup
from shoestring.answers.renderers.page.frame import BEGINNING
from shoestring.base.errors import UsageError
from shoestring.base.reading import read_lines, real_path, reason
from shoestring.base.system_errors import explaining
from shoestring.training.checkpoint.files import replace


def require_output(file: Path, runs: Iterable[Path]) -> None:
    """Raise UsageError if a page must not be written to `file`.

    What exists there has to be a page, so that a mistyped path costs no other file. The directories of the `runs` are
    only read; `report.html` in one of them would be another page than its name says.
    """
    if not file.parent.is_dir():
        raise UsageError(f"{file.parent} is not a directory", hint="create it, or choose another path for the page")
    folder = real_path(file.parent)
    for run in runs:
        if folder.is_relative_to(real_path(run)):
            raise UsageError(
                f"{file} is in the directory of the run {run}, which is only read",
                hint="choose a path outside of it, such as page.html",
            )
    if file.is_symlink() or (file.exists() and not _is_page(file)):
        raise UsageError(
            f"{file} exists and is not a page, so it is not replaced", hint="choose another path, or remove the file"
        )


def write_page(file: Path, page: Markup, after: str) -> None:
    """Replace `file` atomically by `page`: a browser never loads half of it. `after` ends the hint of an error."""
    with explaining(f"{file} could not be written", after):
        # A path that is not UTF-8 contains characters that UTF-8 does not have.
        replace(file, lambda draft: draft.write_text(page, encoding="utf-8", errors="backslashreplace"))


def _is_page(file: Path) -> bool:
    try:
        return next(read_lines(file, follow=False), b"") == BEGINNING.encode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be replaced: {reason(error)}", hint="choose another path") from error
