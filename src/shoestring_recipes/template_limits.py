"""Limits of processor time and of output for the code of a chat template, which comes with a model and may never
end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from shoestring.base.errors import UsageError

ROW_SECONDS = 10.0
"""The most processor time for one text. Usual templates take milliseconds."""
MOST_CHARACTERS = 2**24
"""The most characters of one text. The longest conversations that are trained have a few millions."""
SLOW_SECONDS = 0.05
"""The most processor time that rows may take on average."""
TRIAL_SECONDS = 60.0
"""After so much processor time the average is known."""

_HINT = (
    "correct the template, which is chat_template.jinja or a part of tokenizer_config.json in the model's folder; "
    "finetune takes another one: --set template=FILE"
)


class TemplateLimitError(UsageError):
    """A template takes too long or writes too much. It is an error at once: each further row would take as long."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise TemplateLimitError in a block that takes more than `ROW_SECONDS`; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGVTALRM, _stop)
    # Again and again: an error that is raised within a finalizer is only printed.
    signal.setitimer(signal.ITIMER_VIRTUAL, ROW_SECONDS, ROW_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler)


def rendered(write: Callable[[], Any]) -> str:
    """Return the text that a template writes. Raises TemplateLimitError if that takes too long or is too much."""
    with limited():
        text = str(write())
    if len(text) > MOST_CHARACTERS:
        raise TemplateLimitError(
            f"the chat template wrote {len(text):,} characters for one text; at most {MOST_CHARACTERS:,} are accepted",
            hint=_HINT,
        )
    return text


def require_fast(seconds: float, rendered: int, rows: int) -> None:
    """Raise TemplateLimitError if `rendered` of the rows took so long that all of them would take hours."""
    if seconds > TRIAL_SECONDS and seconds > SLOW_SECONDS * rendered:
        average = seconds / max(1, rendered)
        raise TemplateLimitError(
            f"the chat template is slow: {average:.2f} s for a row, {average * rows / 3600:.1f} h for all {rows:,}",
            hint=_HINT,
        )


def _stop(*_: object) -> NoReturn:
    raise TemplateLimitError(
        f"the chat template did not end after {ROW_SECONDS:g} s of processor time for one text", hint=_HINT
    )
