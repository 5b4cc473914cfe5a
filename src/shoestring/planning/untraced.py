"""The hint of an estimate that is not possible: training needs none."""

from collections.abc import Iterator
from contextlib import contextmanager

from shoestring.base.errors import TraceError
from shoestring.recipe.options import LoadedRecipe

TRAINING_HINT = (
    "`shoestring train` trains it all the same: it measures instead of predicting, and finds a microbatch by trying "
    "unless you set one, --set micro_batch=N"
)


@contextmanager
def hinting_at_training(loaded: LoadedRecipe) -> Iterator[None]:
    """Add the hint to a TraceError, if the recipe has data to train with."""
    try:
        yield
    except TraceError as error:
        if loaded.parts.data.data is None and loaded.parts.learning.trainer is None:
            raise
        hint = f"{error.hint}; {TRAINING_HINT}" if error.hint else TRAINING_HINT
        raise TraceError(error.message, problems=error.problems, hint=hint) from error
