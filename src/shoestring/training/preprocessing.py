"""What a run has fitted on its training data and needs for inference: stored once, and used by every later session."""

from shoestring.base.system_errors import explaining
from shoestring.recipe.parts import Parts
from shoestring.training.checkpoint.folder import verify_folder, write_folder
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.run_directory.directory import RunDirectory


def load_preprocessing(run: RunDirectory, parts: Parts) -> bool:
    """Load the stored preprocessing into the recipe, before its data. Return whether there is any.

    Raises CheckpointError if the folder is damaged.
    """
    if parts.use.load_preprocessing is None or not run.preprocessing.is_dir():
        return False
    verify_folder(run.preprocessing)
    parts.use.load_preprocessing(run.preprocessing)
    return True


def save_preprocessing(run: RunDirectory, parts: Parts, identity: RunIdentity | None) -> None:
    """Store the preprocessing of a recipe that has read its data, once in a run. Raises ShoestringError."""
    if parts.use.save_preprocessing and not run.preprocessing.is_dir():
        with explaining(f"{run.preprocessing} could not be written", ", then train again"):
            write_folder(run.preprocessing, parts.use.save_preprocessing, identity)
