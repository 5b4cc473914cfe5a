"""Which settings and options can be estimated but not trained with yet."""

from shoestring.errors import QuestionError
from shoestring.recipe import Adaptation
from shoestring.settings import Settings

_TRAINED = {"sharding": "ddp", "quantization": "none"}
"""The only value that the engine runs."""


def require_trainable(settings: Settings, adaptation: Adaptation | None = None) -> None:
    """Raises QuestionError naming everything that the engine cannot run; before a run is begun."""
    chosen = {**vars(settings), **vars(adaptation or Adaptation())}
    problems = [
        f"{name}={chosen[name]}: can be estimated, not trained yet"
        for name, runs in _TRAINED.items()
        if chosen[name] != runs
    ]
    if problems:
        hint = " ".join(f"{name}={runs}" for name, runs in _TRAINED.items())
        raise QuestionError("this cannot be trained with", problems=problems, hint=hint)
