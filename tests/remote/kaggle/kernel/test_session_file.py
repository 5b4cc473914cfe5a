import json

import pytest

from shoestring.base.errors import CheckpointError
from shoestring.remote.kaggle.kernel.session_file import parse_session_file, read_session_file

VALID = {
    "format": 1,
    "nonce": "0" * 32,
    "session": 2,
    "status": "paused",
    "reason": "limit",
    "update": 12,
    "first_update": 8,
    "total_updates": None,
    "checkpoint": "update-00000012",
    "damaged": [],
    "seconds": 1,
    "facts": {},
    "files": {"run/plan.json": {"bytes": 3, "sha256": "a" * 64}},
}


def test_valid_file_is_read():
    content = parse_session_file(json.dumps(VALID))
    assert content.files["run/plan.json"].bytes == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "format"),
        ({"nonce": "0"}, "nonce"),
        ({"status": "done"}, "status"),
        ({"update": -1}, "update"),
        ({"damaged": [1]}, "damaged"),
        *(
            ({"files": {path: {"bytes": 1, "sha256": "a" * 64}}}, "files")
            for path in ("../a", "/a", "", "a\\b", "a\n", "a//b", "a/.")
        ),
        ({"files": {f"run/{number}": {"bytes": 1, "sha256": "a" * 64} for number in range(401)}}, "at most 400"),
        ({"files": {"a": {"bytes": 1}}}, "SHA-256"),
        ({"files": {"a": 1}}, "size"),
    ],
)
def test_invalid_value_is_named(changes, problem):
    with pytest.raises(ValueError, match=problem):
        parse_session_file(json.dumps({**VALID, **changes}))


def test_error_page_saved_as_the_file_is_refused(tmp_path):
    path = tmp_path / "shoestring-session.json"
    path.write_text("<html>403</html>")
    with pytest.raises(CheckpointError, match="cannot be used"):
        read_session_file(path)
