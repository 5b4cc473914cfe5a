"""Notebooks for those who click."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.api.arguments import checked_path
from shoestring.base.packages.broken import explained_imports

if TYPE_CHECKING:
    from shoestring.remote.notebook.writing import WrittenNotebook


@explained_imports()
def notebook(
    recipe: str,
    on: str = "kaggle-t4x2",
    *,
    out: str | Path,
    user: str = "USER",
    internet: bool = True,
    allow_cpu: bool = False,
    **values: object,
) -> WrittenNotebook:
    """Write a notebook that trains a recipe on a machine of Kaggle or Colab, and the metadata to push it to Kaggle.

    The folder `out` gets `notebook.ipynb`, which carries Shoestring and the recipe's files, and `kernel-metadata.json`
    for the account `user`. Without `internet`, for sessions of Kaggle that have none, it also gets `wheels`, a dataset
    with the packages that Kaggle's image lacks. A session without a GPU trains only with `allow_cpu`. The notebook
    plans with the data that it finds: `rows`, `row_tokens` and `lengths`, which stand for them in plans elsewhere, may
    be given and are not written into it. An option that is a path may be in a dataset of Kaggle,
    `owner/dataset[:PATH]`, which is then attached.

    Raises UsageError for an unknown target, files that exist, a notebook that is too large for Kaggle, and wheels that
    cannot be downloaded.
    """
    from shoestring.recipe.finding import choose_for_run
    from shoestring.remote.notebook.writing import platform_of, write_notebook

    loaded, of_run = choose_for_run(recipe, values, allow_local=platform_of(on) != "kaggle")
    return write_notebook(loaded, of_run, on, checked_path(out), user, internet=internet, allow_cpu=allow_cpu)
