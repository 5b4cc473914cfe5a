"""Which settings can be estimated but not trained with yet."""

from shoestring.errors import QuestionError
from shoestring.settings import Settings

_TRAINED = {"offload": "no", "sharding": "ddp"}
"""The only value that the engine runs."""


def require_trainable(settings: Settings) -> None:
    """Raises QuestionError naming every setting that the engine cannot run."""
    problems = [
        f"{name}={value}: can be estimated, not trained yet"
        for name, runs in _TRAINED.items()
        if (value := getattr(settings, name)) != runs
    ]
    if problems:
        hint = " ".join(f"{name}={runs}" for name, runs in _TRAINED.items())
        raise QuestionError("these settings cannot be trained with", problems=problems, hint=hint)
