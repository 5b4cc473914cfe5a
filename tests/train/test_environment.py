import pytest
import torch

from shoestring.errors import QuestionError
from shoestring.settings import Settings
from shoestring.train.environment import differences, environment, require_same


@pytest.fixture
def here():
    return environment(Settings(micro_batch=4, precision="fp32"), torch.device("cpu"), "abc")


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
    with pytest.raises(QuestionError, match="--allow-inexact"):
        require_same(here | {"device": "cuda: Tesla T4"}, here, allow_inexact=False)
    assert require_same(here | {"device": "cuda: Tesla T4"}, here, allow_inexact=True)
