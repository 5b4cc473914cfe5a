import pytest
import torch

from shoestring.engine.environment import content, differences, environment, require_same
from shoestring.errors import UsageError
from shoestring.recipe.finding import find
from shoestring.settings import Settings


@pytest.fixture
def here():
    return environment(Settings(micro_batch=4, precision="fp32"), torch.device("cpu"), find("temporal"))


def test_it_has_what_the_bits_depend_on(here):
    assert here["torch"] == torch.__version__
    assert (here["micro_batch"], here["precision"], here["device"]) == (4, "fp32", "cpu")
    assert here["threads"] == torch.get_num_threads()


def test_what_differs_is_said_precisely(here):
    saved = here | {"torch": "2.6.0", "micro_batch": 8}
    saved.pop("threads")
    assert differences(saved, here) == [
        "micro_batch: saved under 8, here 4",
        f"threads: saved under None, here {here['threads']}",
        f"torch: saved under 2.6.0, here {torch.__version__}",
    ]


def test_a_difference_is_an_error_unless_it_is_allowed(here):
    assert require_same(here, here, allow_inexact=False) == []
    with pytest.raises(UsageError, match="--allow-inexact"):
        require_same(here | {"device": "cuda: Tesla T4"}, here, allow_inexact=False)
    assert require_same(here | {"device": "cuda: Tesla T4"}, here, allow_inexact=True)


def test_the_content_of_data_counts_not_its_place(tmp_path):
    for name, text in (("a.csv", "1"), ("b.csv", "1"), ("c.csv", "2")):
        (tmp_path / name).write_text(text)
    assert content(tmp_path / "a.csv") == content(tmp_path / "b.csv") != content(tmp_path / "c.csv")


def test_of_a_directory_the_names_and_sizes_count(tmp_path):
    before = content(tmp_path)
    (tmp_path / "more").mkdir()
    assert content(tmp_path) == before
    (tmp_path / "more" / "a.tif").write_text("1")
    assert content(tmp_path) != before
