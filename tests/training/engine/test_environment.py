import os

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.finding import find
from shoestring.training.engine import environment as module
from shoestring.training.engine.environment import (
    bytes_digest,
    content_digest,
    differences,
    environment,
    require_same,
)


@pytest.fixture
def current():
    return environment(Settings(micro_batch=4, precision="fp32"), torch.device("cpu"), find("temporal"))


def test_environment_has_versions_and_settings(current):
    assert current["torch"] == torch.__version__
    assert (current["micro_batch"], current["precision"], current["device"]) == (4, "fp32", "cpu")
    assert current["threads"] == torch.get_num_threads()


def test_differences_name_both_values(current):
    saved = current | {"torch": "2.6.0", "micro_batch": 8}
    saved.pop("threads")
    assert differences(saved, current) == [
        "micro_batch: saved with 8, now 4",
        f"threads: saved with None, now {current['threads']}",
        f"torch: saved with 2.6.0, now {torch.__version__}",
    ]


def test_difference_is_an_error_unless_allowed(current):
    assert require_same(current, current, allow_inexact=False) == []
    with pytest.raises(UsageError, match="--allow-inexact"):
        require_same(current | {"device": "cuda: Tesla T4"}, current, allow_inexact=False)
    assert require_same(current | {"device": "cuda: Tesla T4"}, current, allow_inexact=True)


def test_digest_depends_on_content_not_path(tmp_path):
    for name, text in (("a.csv", "1"), ("b.csv", "1"), ("c.csv", "2")):
        (tmp_path / name).write_text(text)
    assert (
        content_digest(tmp_path / "a.csv") == content_digest(tmp_path / "b.csv") != content_digest(tmp_path / "c.csv")
    )


def test_digest_of_a_directory_has_names_and_sizes(tmp_path):
    before = content_digest(tmp_path)
    (tmp_path / "more").mkdir()
    assert content_digest(tmp_path) == before
    (tmp_path / "more" / "a.tif").write_text("1")
    assert content_digest(tmp_path) != before


@pytest.mark.parametrize("limits", [(1024, 1 << 20), (1024, 40), (2, 40)], ids=["whole", "blocks", "some files"])
def test_changed_bytes_of_equal_size_are_a_difference(tmp_path, limits, monkeypatch):
    for name, value in zip(("_MOST_FILES", "_MOST_BYTES", "_BLOCK_BYTES"), (*limits, 8), strict=True):
        monkeypatch.setattr(module, name, value)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("0123456789" * 10)
    before, sizes = bytes_digest(tmp_path), content_digest(tmp_path)
    assert bytes_digest(tmp_path) == before
    (tmp_path / "b.csv").write_text("x" + "0123456789" * 9 + "012345678")
    assert content_digest(tmp_path) == sizes and bytes_digest(tmp_path) != before
    saved, present = {"bytes of data": before}, {"bytes of data": bytes_digest(tmp_path)}
    assert differences(saved, present) == ["data: the content of its files has changed since the checkpoint"]
    assert differences({}, present) == []  # a checkpoint of an earlier version


def test_file_that_cannot_be_read_is_no_error(tmp_path):
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    assert bytes_digest(tmp_path)


def test_digest_of_a_link_is_that_of_its_file(tmp_path):
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "link.csv").symlink_to("a.csv")
    assert content_digest(tmp_path / "link.csv") == content_digest(tmp_path / "a.csv")
