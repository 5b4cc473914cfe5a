import errno
import os

import pytest

from shoestring.base.errors import (
    CheckpointError,
    DataError,
    RunError,
    ShoestringError,
    TraceError,
    UsageError,
    nearest,
)
from shoestring.base.system_errors import explaining_below, require_present


def test_error_text_has_problems_and_hint():
    error = DataError("bars.csv cannot be used", problems=["line 3: close is -1", "line 9: no time"], hint="mend them")
    assert str(error).splitlines() == [
        "bars.csv cannot be used",
        "  - line 3: close is -1",
        "  - line 9: no time",
        "hint: mend them",
    ]


def test_exit_status_of_errors():
    assert {kind.status for kind in (UsageError, DataError)} == {2}
    assert {kind.status for kind in (ShoestringError, RunError, TraceError, CheckpointError)} == {1}


def test_similar_name_is_suggested():
    assert nearest("tempral", ["legal", "temporal"]) == "did you mean temporal?"
    assert nearest("xyz", ["legal", "temporal"]) == "available: legal, temporal"
    assert nearest("xyz", []) == "available: none"


def test_system_errors_of_other_paths_stay_as_they_are(tmp_path):
    def fail(path):
        with explaining_below(tmp_path / "run", "the run could not use its directory"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with pytest.raises(RunError, match=r"the run could not use its directory: .*run/plan\.json") as error:
        fail(tmp_path / "run" / "plan.json")
    assert "dmesg" in error.value.hint
    with pytest.raises(OSError, match=r"data\.csv"):
        fail(tmp_path / "data.csv")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "there is no directory .*absent"),
        ("file/x", "there is no directory .*x: a part of this path is a file"),
        ("nowhere", "nowhere is a link that leads nowhere"),
        ("loop", "loop cannot be read: Too many levels of symbolic links"),
        ("n" * 256, "n cannot be read: File name too long"),
    ],
)
def test_reason_for_a_path_that_cannot_be_used(tmp_path, name, message):
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to("absent")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=message):
        require_present(tmp_path / name, "name another")
    require_present(tmp_path / "file", "name another")
