"""A script's trainer that runs out of a GPU's memory: what cannot be divided ends with the reason, the rest goes on."""

from functools import partial

import pytest
import torch
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

from shoestring.base.errors import RunError
from shoestring.integrations.trainer import surviving
from tests.integrations.test_splitting import (
    Killed,
    Labelled,
    Recorded,
    Regression,
    language_model,  # noqa: F401  (a fixture)
    ooms,
    train_trl,
)
from tests.integrations.test_trainer import DropoutModel, Sums
from tests.lab.commands.demand import Demand, ask_for
from tests.lab.commands.test_trainers import GPU, TWO_FIT

pytestmark = pytest.mark.filterwarnings(r"ignore:.*gradient_checkpointing\w*` is deprecated")


class Model(Regression):
    """Means over samples, of what is asked for without gradients as well: `gib` for each sample."""

    def __init__(self, gib=0, factor=1.0):
        super().__init__("samples")
        self.gib, self.factor = gib, factor

    def forward(self, x, labels, **others):
        if not torch.is_grad_enabled():
            ask_for(len(x) * self.gib)
        return {"loss": self.factor * super().forward(x, labels)["loss"]}


class Later(Demand):
    """The first microbatch fits."""

    def _ask_for(self, samples):
        if self.forwards > 1:
            super()._ask_for(samples)


class Contrastive(Model):
    """The loss depends on which samples share a microbatch."""

    def forward(self, x, labels):
        return {"loss": torch.cdist(x, self.layers(x) @ x.new_ones(3, 8)).softmax(1).diagonal().mean()}


class Listed(Trainer):
    """Its microbatches are lists."""

    def compute_loss(self, model, inputs, **keywords):
        return super().compute_loss(model, {"x": inputs[0], "labels": inputs[1]}, **keywords)


class WithOutputs(Trainer):
    """Its steps compute the model's outputs besides the loss."""

    def training_step(self, model, inputs, *arguments):
        loss, outputs = self.compute_loss(model, self._prepare_inputs(inputs), return_outputs=True)
        assert outputs["loss"].isfinite()
        loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


class Twice(WithOutputs):
    """Its steps compute two losses."""

    def training_step(self, model, inputs, *arguments):
        self.compute_loss(model, self._prepare_inputs(inputs))
        return super().training_step(model, inputs, *arguments)


class Doubled(WithOutputs):
    """The loss of a step is that of other samples as well."""

    def training_step(self, model, inputs, *arguments):
        doubled = {name: torch.cat([value, value]) for name, value in inputs.items()}
        return super().training_step(model, doubled, *arguments)


def with_others(samples, **others):
    return default_collate(samples) | others


def train(
    run, demand, model=Model, data=Labelled, trainer=Trainer, micro_batch=4, is_copying=False, collate=None, **options
):
    """Train an epoch of updates of two microbatches in fp32; return the losses, and the gradients of the updates."""
    arguments = TrainingArguments(
        output_dir=str(run.parent / "own"), per_device_train_batch_size=micro_batch, gradient_accumulation_steps=2,
        num_train_epochs=1, learning_rate=1e-2, report_to=[], save_strategy="steps", save_steps=1, logging_steps=1,
        seed=5, remove_unused_columns=False,
    )  # fmt: skip
    recorded = Recorded()
    with surviving(run, **options) as survive:
        torch.manual_seed(3)
        resumable = survive(trainer)
        if is_copying:
            resumable.get_batch_samples = _copying(resumable.get_batch_samples)
        resumable(
            model=demand.limit(model()), args=arguments, train_dataset=data(), data_collator=collate,
            callbacks=[recorded] if data is Labelled else [],
        ).train()  # fmt: skip
    return recorded


def _copying(get_batch_samples):
    """The microbatches that the loop trains with are copies of those that it was given."""

    def copied(self, *arguments):
        batches, items = get_batch_samples(self, *arguments)
        return [dict(batch) for batch in batches], items

    return copied


def listed(samples):
    return [torch.stack([sample[name] for sample in samples]) for name in ("x", "labels")]


INDIVISIBLE = {
    "which samples share a microbatch": {"model": Contrastive},
    "its microbatches are of the type list": {"trainer": Listed, "collate": listed},
    "the input 'edges' of a microbatch of 4 samples has a length of 3": {
        "collate": partial(with_others, edges=torch.ones(3))
    },
    "the input 'scale' of a microbatch of 4 samples has the type float": {"collate": partial(with_others, scale=2.0)},
    "its loss is 0, so it is not known": {"model": partial(Model, factor=0.0)},
    "there is no memory to compare the loss of two samples": {"model": partial(Model, gib=2 * TWO_FIT)},
    "its loss is not computed from the microbatch": {"trainer": Doubled},
    "its training_step computes 2 losses": {"trainer": Twice},
    "its loop does not fetch the microbatches of an update at once": {"is_copying": True},
}


@pytest.mark.parametrize("reason", INDIVISIBLE)
def test_what_cannot_be_divided_ends_with_the_reason(reason, tmp_path):
    with pytest.raises(RunError, match=r"^out of memory with microbatches of 4: CUDA out of memory") as raised:
        train(tmp_path / "run", Demand(TWO_FIT), **INDIVISIBLE[reason])
    assert reason in raised.value.problems[0] and "halve per_device_train_batch_size" in raised.value.hint


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("grpo", {}, "generated for several microbatches"),
        ("sft", {"padding_free": True, "max_length": None}, "joined to one row"),
        ("sft", {"activation_offloading": True}, "activation_offloading=True keeps"),
    ],
)
def test_trainers_of_trl_that_cannot_be_divided(kind, options, reason, tmp_path, language_model):  # noqa: F811
    with pytest.raises(RunError, match=r"^out of memory with microbatches of 4: CUDA out of memory") as raised:
        train_trl(kind, tmp_path / "run", language_model, Demand(4 * TWO_FIT), **GPU | options)
    assert reason in raised.value.problems[0] and not ooms(tmp_path / "run")


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_sample_that_does_not_fit(recomputes, tmp_path, language_model):  # noqa: F811
    options = GPU | {"gradient_checkpointing": recomputes}
    with pytest.raises(RunError, match="with the smallest microbatch: CUDA out of memory") as raised:
        train_trl("sft", tmp_path / "run", language_model, Demand(4 * TWO_FIT), **options)
    assert raised.value.hint.startswith("set gradient_checkpointing=True; or ") != recomputes
    assert [done for *_, done in ooms(tmp_path / "run")] == ["microbatch 2", "microbatch 1"]


@pytest.mark.parametrize(
    ("demand", "options"),
    [
        (Later, {}),
        (Demand, {"trainer": WithOutputs}),
        (Demand, {"collate": partial(with_others, flag=True, name="edges", nothing=None)}),
        (Demand, {"model": partial(Model, gib=TWO_FIT)}),
    ],
    ids=["second microbatch", "tuple of a loss", "inputs that are no tensors", "only the loss of a half fits"],
)
def test_halves_have_the_gradients_of_the_whole(demand, options, tmp_path):
    whole, halved = (train(tmp_path / name, demand(gib), **options) for name, gib in (("whole", 0), ("run", TWO_FIT)))
    assert ooms(tmp_path / "run") == [(0, 4, "microbatch 2")] and len(whole.gradients) == 6
    for expected, gradient in zip(whole.gradients, halved.gradients, strict=True):
        assert gradient.is_cuda and torch.allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    assert halved.losses == pytest.approx(whole.losses, rel=1e-4)


def test_no_part_has_a_single_sample_for_batch_norm(tmp_path):
    """The last microbatch of the epoch has three samples, which are not divided into two and one."""
    sizes = []

    class Odd(Sums):
        def __len__(self):
            return 47

    class Watched(DropoutModel):
        def forward(self, x, y):
            sizes.extend([len(x)] if torch.is_grad_enabled() else [])
            return super().forward(x, y)

    train(tmp_path / "run", Demand(TWO_FIT), model=Watched, data=Odd)
    assert ooms(tmp_path / "run") == [(0, 4, "microbatch 2")] and sizes == [2] * 22 + [3]


def test_a_later_session_cannot_divide_the_microbatches(tmp_path):
    """They are of another kind than in the session before."""
    run = tmp_path / "run"
    with pytest.raises(Killed):
        train(run, Demand(TWO_FIT, kill_at=9))
    with pytest.raises(RunError, match="out of memory in an earlier session, and microbatches of 4 cannot") as raised:
        train(run, Demand(), collate=partial(with_others, edges=torch.ones(3)), allow_inexact=True)
    assert "the input 'edges'" in raised.value.problems[0]
