"""Saving models of transformers without remarks on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and the warnings of transformers."""
    from transformers.utils import logging as library_logging

    logging: Any = library_logging
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(ERROR)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
