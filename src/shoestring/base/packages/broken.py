"""A library that is installed and cannot be imported, recognized by the exception that its import has raised.

No command imports a library only to see whether that works, which would take seconds. What the import raises differs:
ImportError, OSError for a shared library, RuntimeError, AttributeError between two versions that do not fit together.
So the traceback decides: the innermost module of a library that was being executed is the one that cannot be imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from shoestring.base.errors import ShoestringError, UsageError
from shoestring.base.packages.origin import pip_install
from shoestring.base.packages.requirements import (
    UNKNOWN_VERSION,
    Package,
    declared,
    has_module,
    library_of,
    module_of,
    pinned,
    problems_as_error,
    reinstall_command,
    require_essential,
)
from shoestring.base.packages.tested import TESTED

_MOST_CHARACTERS = 300


@contextmanager
def usable_libraries() -> Iterator[None]:
    """Raise UsageError if a library that planning and training need cannot be used, or if an import in the body fails.

    Missing libraries and unsuitable versions are found without an import.
    """
    require_essential()
    with explained_imports():
        yield


@contextmanager
def explained_imports() -> Iterator[None]:
    """Raise UsageError if an import in the body fails, or if this copy of Shoestring lacks a module."""
    try:
        yield
    except Exception as error:
        if explained := broken_library(error):
            raise explained from error
        raise


def broken_library(error: BaseException) -> UsageError | None:
    """Return the error for a library that is missing or that cannot be imported; None if `error` has another reason."""
    known = {module_of(name) for name in (*(package.name for package in declared()), *TESTED)}
    for cause in _causes(error):
        if isinstance(cause, ShoestringError):
            return None
        missing = (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
        if _is_left_out(cause):
            return UsageError(
                f"this copy of Shoestring is incomplete, because a notebook carries only what a session needs: {cause}",
                hint="do this where Shoestring is installed from a checkout, or from the wheel of one",
            )
        if missing in known and not has_module(missing):
            return problems_as_error([library_of(missing)])
        if importing := _module_being_imported(cause, known):
            return _explained(library_of(importing), cause, missing if missing != importing else "")
    return None


def _is_left_out(error: BaseException) -> bool:
    """Return whether an import has failed in the copy that a notebook carries, for a module that is not in it."""
    is_own = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "shoestring"
    return is_own and find_spec("shoestring.planning.simulator") is None


def _explained(library: Package, error: BaseException, missing: str) -> UsageError:
    """Return the error for an import of `library` that has raised `error`; `missing` is a module that it lacks."""
    text = " ".join(str(error).split())
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
    # For a version that is installed, pip installs what it requires and lacks.
    command = pip_install(pinned(library)) if missing else reinstall_command(pinned(library))
    return UsageError(
        f"{library.name} {library.installed or UNKNOWN_VERSION} is installed, but cannot be imported (required: "
        f"{library.requirement}): {type(error).__name__}: {text}",
        hint=f"{command}; if it still cannot be imported, `pip check` names libraries that do not fit together",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception, and those from which it was raised."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        yield error
        visited.add(id(error))
        error = error.__cause__


def _module_being_imported(error: BaseException, known: set[str]) -> str:
    """Return the innermost known library of which a module was being executed; empty without one."""
    importing, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_name == "<module>" and library in known:
            importing = library
        trace = trace.tb_next
    return importing
