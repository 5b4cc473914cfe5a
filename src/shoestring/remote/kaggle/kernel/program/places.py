"""The folders and files of a session on Kaggle, and the error that ends one."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("SHOESTRING_KAGGLE_ROOT", "/kaggle"))
INPUT, WORKING, TEMP = ROOT / "input", ROOT / "working", ROOT / "temp"
RUN, RECIPE_FILES = WORKING / "run", TEMP / "recipe-files"
# Named so because dill, which datasets uses, takes modules elsewhere for the user's own, saves them whole, and fails at
# pyarrow.
SITE = TEMP / "site-packages"
SESSION_FILE, LOG_FILE, PACKAGE_FILE = "shoestring-session.json", "shoestring.log", "shoestring-package.json"


class SessionError(Exception):
    """The session cannot go on; the text says why, and `hint` what to do."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint
