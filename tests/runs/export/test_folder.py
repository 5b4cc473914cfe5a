"""The folder of an export when a library fails, and who may read its files."""

import errno

import pytest
from safetensors import SafetensorError

from shoestring.base.errors import RunError
from shoestring.runs.export import folder as export_folder


def write(folder):
    (folder / "model.safetensors").write_text("weights")
    (folder / "model.safetensors").chmod(0o600)
    export_folder.write_manifest(folder, {"format": "own"})


def test_everybody_may_read_what_may_read_the_manifest(tmp_path):
    with export_folder.writing(tmp_path / "export", overwrite=False) as folder:
        write(folder)
    modes = {file.stat().st_mode for file in (tmp_path / "export").iterdir()}
    assert len(modes) == 1 and modes.pop() & 0o777 != 0o600


def test_a_full_disk_is_one_whichever_library_writes(tmp_path):
    def fill(folder):
        write(folder)
        raise SafetensorError(f"Error while serializing: I/O error: No space left (os error {errno.ENOSPC})")

    with (
        pytest.raises(RunError, match="export could not be written: No space left on device") as caught,
        export_folder.writing(tmp_path / "export", overwrite=False) as folder,
    ):
        fill(folder)
    assert "free disk space there" in caught.value.hint
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError), export_folder.writing(tmp_path / "export", overwrite=False):
        raise KeyError("os error")
