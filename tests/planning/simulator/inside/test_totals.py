from types import SimpleNamespace
from typing import Any

import pytest

from shoestring.planning.simulator.inside import totals


def _trainer(module: str, **attributes: Any) -> Any:
    """A class derived from the library's, as TRL's trainers are, whose method asks for the total."""
    base = type("Trainer", (), {"__module__": module})

    class Derived(base):  # type: ignore[misc, valid-type]
        def train(self) -> dict[str, Any] | None:
            num_update_steps_per_epoch = 5  # noqa: F841 - a local variable of the library's function
            return totals.find()

    trainer = Derived()
    vars(trainer).update(attributes)
    return trainer


def test_the_trainer_of_transformers() -> None:
    trainer = _trainer("transformers.trainer", state=SimpleNamespace(max_steps=20, global_step=0))
    assert trainer.train() == {"total_updates": 20, "source": "transformers.Trainer", "updates_per_epoch": 5}


def test_a_run_that_continues_has_fewer_updates() -> None:
    trainer = _trainer("transformers.trainer", state=SimpleNamespace(max_steps=20, global_step=8))
    found = trainer.train()
    assert (found["total_updates"], found["updates_before"]) == (12, 8)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_trainer_of_lightning(package: str) -> None:
    trainer = _trainer(
        f"{package}.trainer.trainer", estimated_stepping_batches=6, num_training_batches=5, accumulate_grad_batches=2
    )
    assert trainer.train()["total_updates"] == 6
    assert trainer.train()["source"] == f"{package.split('.')[0]}.Trainer"
    trainer.estimated_stepping_batches = float("inf")
    assert trainer.train() is None


def test_arguments_of_a_script_without_a_trainer() -> None:
    def main(args: Any) -> dict[str, Any] | None:
        return totals.find()

    assert main(SimpleNamespace(max_train_steps=7)) == {"total_updates": 7, "source": "args.max_train_steps"}
    assert main(SimpleNamespace(max_train_steps=None)) is None


def test_a_loop_of_ones_own_has_no_total() -> None:
    assert totals.find() is None
