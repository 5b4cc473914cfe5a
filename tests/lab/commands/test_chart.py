"""GRPO of the recipe chart on a GPU: it generates, trains in fp16, and continues with the same bits."""

from itertools import islice

import torch

from shoestring.recipe.finding import choose
from shoestring.training.session.deadline import Deadline
from tests.recipes.chart.test_training import TINY, CountingDeadline, Digits, assert_same_trained_adapters, read_log
from tests.sessions import run_session

CUDA = torch.device("cuda")
VALUES = TINY | {"epochs": 1, "effective_batch": 8, "micro_batch": 4, "generations": 4, "completion_len": 4}


class Four(Digits):
    """Two updates, each of two charts."""

    count = 4


def train(run, deadline=None, **values):
    loaded, settings = choose(Four(), VALUES | values)
    return run_session(loaded, settings, run, deadline or Deadline(None), device=CUDA)


def test_a_stopped_run_ends_in_the_bits_of_one_that_was_not(tmp_path):
    outcome = train(tmp_path / "whole", precision="fp16")
    assert (outcome.status, outcome.update) == ("finished", 2)
    assert train(tmp_path / "run", CountingDeadline(1), precision="fp16").update == 1
    assert train(tmp_path / "run", precision="fp16").status == "finished"
    assert_same_trained_adapters(tmp_path / "run", tmp_path / "whole")
    assert read_log(tmp_path / "run") == read_log(tmp_path / "whole")


def test_greedy_answers_are_those_of_the_cpu():
    loaded, _ = choose(Four(), VALUES)
    recipe = loaded.recipe
    loaded.data()
    torch.manual_seed(0)
    model = recipe.learner().eval()
    batch = recipe.collate([question.load() for question in islice(recipe.inputs(None), 3)])
    with torch.no_grad():
        expected = recipe.predict(model, batch)
        answers = recipe.predict(model.to(CUDA), batch)
    assert len(expected) == 3 and all(answer["text"] for answer in expected)
    assert answers == expected
