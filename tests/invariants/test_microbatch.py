"""Training depends on the effective batch, not on its microbatches."""

import pytest
import torch
from torch import nn

from shoestring.recipe.finding import choose
from shoestring.recipe.microbatches import split
from shoestring.training import loop
from shoestring.training.data.batches import collate_function, fetch
from shoestring.training.data.order import DataOrder
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import update
from shoestring.training.monitor.events import read
from tests.contrastive import InfoNCE
from tests.sessions import final_bits, session

UPDATES = 50
EFFECTIVE = 64


def trajectory(architecture, micro_batch, dtype, *, batch_statistics=False):
    """Return the losses, the samples and the learning rates of the first updates."""
    loaded, _ = choose("temporal", {"architecture": architecture, "size": "tiny", "dropout": 0.0, "epochs": 10})
    recipe = loaded.recipe
    seed_all(derive(loaded.seed, "model"))
    model = recipe.model().to(dtype).train()
    if not batch_statistics:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
    optimizer = recipe.optimizer(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    data = recipe.data()["train"]
    order = DataOrder(samples=len(data), effective_batch=EFFECTIVE, seed=loaded.seed)
    losses, samples, schedule = [], [], []
    for number in range(UPDATES):
        indices = order.indices(number)
        factor = recipe.schedule(number, order.updates_per_epoch, 10 * order.updates_per_epoch)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        pieces = split(indices, micro_batch)
        batches = [fetch(data, collate_function(recipe), piece, seed=0, epoch=0) for piece in pieces]
        result = update(
            model,
            optimizer,
            recipe.loss,
            [((x.to(dtype), y), len(piece)) for (x, y), piece in zip(batches, pieces, strict=True)],
            samples=len(indices),
            mixed_precision=mixed_precision("fp32", torch.device("cpu")),
            clip_norm=recipe.clip_norm,
        )
        losses.append(float(result.loss))
        samples.append([index for piece in pieces for index in piece])
        schedule.append([group["lr"] for group in optimizer.param_groups])
    return torch.tensor(losses, dtype=torch.float64), samples, schedule


# Loss sums are in fp32 for any dtype of the model, hence not 1e-15 for float64.
@pytest.mark.parametrize(
    ("architecture", "dtype", "tolerance"),
    [
        ("transformer", torch.float64, 1e-6),
        pytest.param("mlp", torch.float64, 1e-6, marks=pytest.mark.slow),
        ("mlp", torch.float32, 2e-4),
        pytest.param("transformer", torch.float32, 2e-4, marks=pytest.mark.slow),
        pytest.param("lstm", torch.float64, 1e-6, marks=pytest.mark.slow),
        pytest.param("lstm", torch.float32, 2e-4, marks=pytest.mark.slow),
    ],
)
def test_updates_are_equal_for_any_microbatch(architecture, dtype, tolerance):
    losses, samples, schedule = trajectory(architecture, EFFECTIVE, dtype)
    assert losses[-10:].mean() < losses[:10].mean()
    for micro_batch in (32, 16, 7):
        other_losses, other_samples, other_schedule = trajectory(architecture, micro_batch, dtype)
        assert other_samples == samples
        assert other_schedule == schedule
        torch.testing.assert_close(other_losses, losses, rtol=tolerance, atol=0)


def test_batch_statistics_depend_on_the_microbatch():
    """The effect that the comparison excludes exists, and the comparison can fail."""
    single, _, _ = trajectory("mlp", EFFECTIVE, torch.float64, batch_statistics=True)
    split_up, _, _ = trajectory("mlp", 16, torch.float64, batch_statistics=True)
    assert (single - split_up).abs().max() > 1e-3


@pytest.mark.parametrize(("micro_batch", "notes"), [(64, 0), (16, 1)])
def test_batch_norm_in_microbatches_has_a_note(tmp_path, micro_batch, notes):
    values = {"architecture": "mlp", "size": "tiny", "epochs": 1, "effective_batch": 64, "micro_batch": micro_batch}
    session("temporal", tmp_path, values)
    assert (tmp_path / "events.jsonl").read_text().count(
        "BatchNorm computes its statistics over each microbatch"
    ) == notes


def test_microbatch_sizes_of_64_samples_by_7():
    assert [len(piece) for piece in split(range(64), 7)] == [7, 7, 7, 7, 6, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("samples", range(1, 40))
def test_microbatches_are_complete_and_of_equal_size(samples):
    for micro_batch in range(1, samples + 3):
        pieces = split(range(samples), micro_batch)
        sizes = [len(piece) for piece in pieces]
        assert [index for piece in pieces for index in piece] == list(range(samples))
        assert max(sizes) <= micro_batch
        assert max(sizes) - min(sizes) <= 1
        # A microbatch of one: a single sample, microbatches of one, or an odd number of samples in pairs.
        assert min(sizes) > 1 or samples == 1 or micro_batch == 1 or (micro_batch == 2 and samples % 2)


def test_comparison_with_halves_reports_and_changes_no_bits(tmp_path, monkeypatch):
    """BatchNorm, dropout and the order of workers would show another forward or other random numbers."""
    values = {"epochs": 3, "micro_batch": 16, "workers": 1}
    session(InfoNCE(), tmp_path / "compared", values)
    monkeypatch.setattr(loop, "report_irregularities", lambda _: None)
    session(InfoNCE(), tmp_path / "plain", values)
    assert final_bits(tmp_path / "compared") == final_bits(tmp_path / "plain")
    reports = [
        sum("two halves" in str(event.get("message")) for event in read(tmp_path / name / "events.jsonl"))
        for name in ("compared", "plain")
    ]
    assert reports == [1, 0]
