"""Resuming with transformers' private parts and without: the same bits."""

import pytest
import torch
from torch.utils.data import RandomSampler
from transformers import Trainer

from shoestring.integrations import private_parts
from shoestring.integrations.trainer import surviving
from tests.integrations.test_trainer import Dropping, Sums, arguments, terminated


def trained(run, *, stop_at=0):
    """(Updates done, all weights); its order of samples has a generator of its own, as TRL's has."""

    class Repeating(Trainer):
        count = 0

        def _get_train_sampler(self, *_):
            return RandomSampler(self.train_dataset, generator=torch.Generator().manual_seed(self.args.seed))

        def training_step(self, *args, **kwargs):
            self.count += 1
            if self.count == stop_at:
                terminated()
            return super().training_step(*args, **kwargs)

    with surviving(run) as survive:
        torch.manual_seed(3)
        trainer = survive(Repeating)(model=Dropping(), args=arguments(run.parent / "own"), train_dataset=Sums())
        trainer.train()
        weights = torch.cat([value.flatten().double() for value in trainer.model.state_dict().values()])
        return trainer.state.global_step, weights


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.parametrize("private", [True, False])
def test_a_run_resumed_in_its_second_epoch_ends_in_the_same_bits(undisturbed, tmp_path, monkeypatch, private):
    if not private:
        monkeypatch.setattr(private_parts, "available", lambda _: False)
    reached, _ = trained(tmp_path / "run", stop_at=18)
    assert 7 < reached < 14
    updates, weights = trained(tmp_path / "run")
    assert updates == undisturbed[0] and torch.equal(weights, undisturbed[1])


def test_the_versions_that_are_installed_have_the_private_parts():
    assert private_parts.available(Trainer)
    assert not private_parts.available(object)


def test_cycles_are_counted_by_trl_or_by_updates():
    class Made:
        class args:  # noqa: N801
            steps_per_generation, gradient_accumulation_steps = 4, 2

        class state:  # noqa: N801
            global_step = 3

        num_iterations = 1

    assert not private_parts.between_cycles(Made)
    Made.state.global_step = 4
    assert private_parts.between_cycles(Made)
    Made._step = 6
    assert not private_parts.between_cycles(Made)
