import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from shoestring.base.errors import DataError, UsageError
from shoestring.recipe.contract import build_optimizer, datasets
from shoestring.recipe.finding import find, load
from shoestring.recipe.options import option_fields
from shoestring_recipes.temporal import ARCHITECTURES, Options, Temporal

from .market import random_bars, write_csv

every_architecture = pytest.mark.parametrize("architecture", list(ARCHITECTURES))


def signal_batch(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples whose class depends on one feature of the last bar."""
    torch.manual_seed(seed)
    inputs = torch.randn(count, 4, 29)
    return inputs, (inputs[:, -1, 0] > -0.4).long() + (inputs[:, -1, 0] > 0.4).long()


def test_recipe_is_built_in_and_documents_every_option() -> None:
    loaded = find("temporal")
    assert isinstance(loaded.recipe, Temporal)
    assert (loaded.epochs, loaded.effective_batch, loaded.seed) == (50, 256, 42)
    assert all(field.help for field in option_fields(loaded).values())


def test_options_are_parsed_from_text() -> None:
    recipe = load("temporal", {"size": "tiny", "architecture": "mlp", "fold": "3/5", "learning_rate": "0.01"}).recipe
    assert recipe.options == Options(size="tiny", architecture="mlp", fold="3/5", learning_rate=0.01)


def test_all_invalid_options_are_reported_at_once() -> None:
    invalid = {
        "seq_len": 0,
        "horizon": 0,
        "patience": 0,
        "threshold": -0.1,
        "warmup_epochs": -1,
        "dropout": 1.0,
        "label_smoothing": 1.0,
        "learning_rate": 0.0,
        "fold": "6/5",
    }
    with pytest.raises(UsageError) as error:
        Options(**invalid)
    assert {problem.split("=")[0] for problem in error.value.problems} == set(invalid)


def test_limits_of_the_options_are_valid() -> None:
    Options(seq_len=1, horizon=1, patience=1, threshold=0.0, warmup_epochs=0, dropout=0.0, label_smoothing=0.0)


def test_batch_has_the_shapes_of_real_batches() -> None:
    recipe = Temporal(Options(seq_len=7))
    inputs, labels = recipe.batch(5)
    data = datasets(recipe)["train"]
    real, classes = recipe.collate(data.__getitems__([0, 1, 2, 3, 4]))
    assert inputs.shape == real.shape == (5, 7, 29) and inputs.dtype == real.dtype
    assert labels.shape == classes.shape == (5,) and labels.dtype == classes.dtype


def test_the_loss_is_the_mean_over_the_microbatch() -> None:
    recipe = Temporal(Options(size="tiny", dropout=0.0))
    model, (inputs, labels) = recipe.model(), signal_batch(8)
    parts = [recipe.loss(model, (inputs[start : start + 2], labels[start : start + 2])) for start in range(0, 8, 2)]
    torch.testing.assert_close(torch.stack(parts).mean(), recipe.loss(model, (inputs, labels)))
    smoothed = 0.9 * cross_entropy(model(inputs), labels) - 0.1 * model(inputs).log_softmax(1).mean()
    torch.testing.assert_close(recipe.loss(model, (inputs, labels)), smoothed)


@every_architecture
def test_tiny_models_learn_a_signal(architecture: str) -> None:
    recipe = Temporal(Options(size="tiny", architecture=architecture, seq_len=4, dropout=0.0, learning_rate=2e-2))
    torch.manual_seed(0)
    model, batch = recipe.model(), signal_batch(128)
    optimizer = build_optimizer(recipe, model)
    losses = []
    for update in range(40):
        optimizer.zero_grad()
        loss = recipe.loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = 2e-2 * recipe.schedule(update, 2, 40)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 1.0  # log 3 for a guess
    assert losses[-1] < 0.75, losses


@every_architecture
def test_optimizer_is_adamw_with_the_default_rates(architecture: str) -> None:
    recipe = Temporal(Options(architecture=architecture))
    optimizer = recipe.optimizer(recipe.model())
    assert isinstance(optimizer, torch.optim.AdamW)
    defaults = {"lstm": 5e-4, "transformer": 3e-4, "mlp": 1e-3}
    rates = [*defaults.values(), 1e-3] if architecture == "ensemble" else [defaults[architecture]]
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (rate, 5e-4) for rate in rates
    ]
    assert recipe.clip_norm == (1.0 if architecture == "mlp" else 0.5)
    recipe = Temporal(Options(architecture=architecture, learning_rate=0.1))
    assert recipe.optimizer(recipe.model()).param_groups[0]["lr"] == 0.1


def test_schedule_warms_up_and_decays_to_zero() -> None:
    factors = [Temporal().schedule(update, 10, 500) for update in range(500)]
    assert factors[:50] == pytest.approx([(update + 1) / 50 for update in range(50)])
    assert factors[50] == 1
    assert factors[275] == pytest.approx(0.5)
    assert all(later < earlier for earlier, later in pairwise(factors[50:]))
    assert 0 < factors[-1] < 1e-4


@pytest.mark.parametrize(("updates_per_epoch", "total"), [(1, 1), (1, 2), (3, 6), (1, 50)])
def test_schedule_of_a_short_run_reaches_the_peak(updates_per_epoch: int, total: int) -> None:
    factors = [Temporal().schedule(update, updates_per_epoch, total) for update in range(total)]
    assert max(factors) == 1
    assert min(factors) > 0
    assert total < 3 or factors[-1] < 1


def test_no_warmup_starts_at_the_peak() -> None:
    assert Temporal(Options(warmup_epochs=0)).schedule(0, 10, 500) == 1


def test_evaluate_by_hand() -> None:
    recipe = Temporal(Options(size="tiny"))
    model = recipe.model().eval()
    data = recipe.data()
    inputs, labels = data["validation"].__getitems__(list(range(50)))
    with torch.no_grad():
        metrics = recipe.evaluate(model, [(inputs[:32], labels[:32]), (inputs[32:], labels[32:])])
        logits = model(inputs).double()
    log_probabilities = logits.log_softmax(1)
    expected = (
        -(0.9 * log_probabilities.gather(1, labels[:, None])[:, 0] + 0.1 * log_probabilities.mean(dim=1)).sum() / 50
    )
    assert metrics["loss"] == pytest.approx(float(expected), rel=1e-6)
    assert metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    share = float(labels.bincount().max()) / 50
    assert metrics["majority_accuracy"] == pytest.approx(share)
    class_count = len(labels.unique())
    assert metrics["majority_macro_f1"] == pytest.approx(2 * share / (1 + share) / class_count)
    assert all(math.isfinite(value) for value in metrics.values() if isinstance(value, float))


def test_the_majority_is_that_of_the_evaluated_data() -> None:
    recipe = Temporal(Options(size="tiny"))
    inputs, _ = recipe.batch(4)
    with torch.no_grad():
        metrics = recipe.evaluate(recipe.model().eval(), [(inputs, torch.tensor([0, 0, 0, 2]))])
    assert metrics["majority_accuracy"] == 0.75


def test_batches_are_weighted_by_their_samples() -> None:
    recipe = Temporal(Options(size="tiny"))
    model, (inputs, labels) = recipe.model().eval(), signal_batch(33)
    with torch.no_grad():
        whole = recipe.evaluate(model, [(inputs, labels)])
        uneven = recipe.evaluate(model, [(inputs[:32], labels[:32]), (inputs[32:], labels[32:])])
    assert uneven["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert uneven["macro_f1"] == whole["macro_f1"]


def test_notes_describe_the_data(tmp_path: Path) -> None:
    recipe = Temporal()
    recipe.data()
    (note,) = recipe.notes()
    assert "GOOG" in note and "1,047 real daily bars from 2004-08-19 to 2008-10-14" in note
    assert note.endswith("samples: train 670, validation 123, test 122")
    recipe = Temporal(Options(threshold=9.0))
    recipe.data()
    assert "train: all samples have the class flat: nothing can be learned from them" in recipe.notes()
    assert "test: all samples have the class flat: its metrics tell nothing" in recipe.notes()


def test_skipped_rows_are_noted_for_cached_data_too(tmp_path: Path) -> None:
    bars = random_bars(400)
    bars.loc[100, "close"] = -1.0
    path = write_csv(tmp_path / "bars.csv", bars)
    with pytest.raises(DataError, match="1 of 400 rows cannot be used"):
        Temporal(Options(data=path)).data()
    for _ in range(2):
        recipe = Temporal(Options(data=path, on_bad_rows="skip"))
        recipe.data()
        data_note, skipped_note = recipe.notes()
        assert data_note.startswith("data: 399 bars from 2024-01-01 to 2024-01-17")
        assert "line 102: " in skipped_note and "close -1 is not positive" in skipped_note
