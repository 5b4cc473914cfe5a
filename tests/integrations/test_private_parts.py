"""Resuming with and without transformers' private methods gives the same bits."""

import pytest
import torch
from torch.utils.data import RandomSampler
from transformers import Trainer

from shoestring.integrations import private_parts
from shoestring.integrations.trainer import surviving
from tests.integrations.test_trainer import DropoutModel, Sums, make_arguments, terminate


def train(run, *, stop_at=0, accumulation_steps=2):
    """Train one session with a sampler that has its own generator, as TRL's has; return (updates, all weights)."""

    class TrainerWithSampler(Trainer):
        count = 0

        def _get_train_sampler(self, *_):
            return RandomSampler(self.train_dataset, generator=torch.Generator().manual_seed(self.args.seed))

        def training_step(self, *args, **kwargs):
            self.count += 1
            if self.count == stop_at:
                terminate()
            return super().training_step(*args, **kwargs)

    with surviving(run, exit_when_paused=False) as survive:
        torch.manual_seed(3)
        arguments = make_arguments(run.parent / "own")
        arguments.gradient_accumulation_steps = accumulation_steps
        trainer = survive(TrainerWithSampler)(model=DropoutModel(), args=arguments, train_dataset=Sums())
        trainer.train()
        weights = torch.cat([value.flatten().double() for value in trainer.model.state_dict().values()])
        return trainer.state.global_step, weights


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train(tmp_path_factory.mktemp("uninterrupted") / "run")


@pytest.mark.parametrize("private", [True, False])
def test_resume_in_the_second_epoch_is_exact(uninterrupted, tmp_path, monkeypatch, private):
    if not private:
        monkeypatch.setattr(private_parts, "has_private_parts", lambda _: False)
    interrupted_at, _ = train(tmp_path / "run", stop_at=18)
    assert 7 < interrupted_at < 14
    updates, weights = train(tmp_path / "run")
    assert updates == uninterrupted[0] and torch.equal(weights, uninterrupted[1])


@pytest.mark.parametrize(("accumulation_steps", "updates_of_epoch"), [(3, 5), (5, 3), (8, 2)])
def test_last_update_of_a_continued_epoch_has_the_remaining_microbatches(
    tmp_path, accumulation_steps, updates_of_epoch
):
    """An epoch has 13 microbatches, its last update 1, 3 or 5. The sessions end before that of the first two epochs."""
    whole = train(tmp_path / "whole" / "run", accumulation_steps=accumulation_steps)
    assert whole[0] == 3 * updates_of_epoch
    for epoch, stop_at in ((1, accumulation_steps * (updates_of_epoch - 1)), (2, 13)):
        updates, _ = train(tmp_path / "run", stop_at=stop_at, accumulation_steps=accumulation_steps)
        assert updates == epoch * updates_of_epoch - 1
    updates, weights = train(tmp_path / "run", accumulation_steps=accumulation_steps)
    assert updates == whole[0] and torch.equal(weights, whole[1])


def test_installed_versions_have_the_private_parts():
    assert private_parts.has_private_parts(Trainer)
    assert not private_parts.has_private_parts(object)


def test_cycles_are_counted_in_microbatches():
    class FakeTrainer:
        class args:  # noqa: N801
            steps_per_generation, gradient_accumulation_steps = 4, 2

        class state:  # noqa: N801
            global_step = 3

        num_iterations = 1

    assert not private_parts.is_between_cycles(FakeTrainer)
    FakeTrainer.state.global_step = 4
    assert private_parts.is_between_cycles(FakeTrainer)
    FakeTrainer._step = 6
    assert not private_parts.is_between_cycles(FakeTrainer)
