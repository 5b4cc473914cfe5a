import warnings

import pytest
import pytorch_lightning as pl
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import shoestring
from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.integrations.lightning import recipe
from shoestring.recipe.finding import choose, find
from shoestring.training.data.order import DataOrder
from shoestring.training.data.sequential import sequential_batches
from shoestring.training.engine.building import build
from tests.integrations.lightning import modules
from tests.sessions import CPU, final_bits, session

FILE = modules.__file__


class Watching(pl.Callback):
    def __init__(self):
        self.losses, self.settings = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.settings.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]))


def test_training_is_that_of_lightnings_trainer():
    loaded, _ = choose(f"{FILE}:Classifier", {"epochs": 2})
    mine = loaded.recipe
    data = loaded.data()
    order = DataOrder.of(data["train"], effective_batch=8, seed=0)
    state = build(loaded, Settings(precision="fp32"), CPU, updates_per_epoch=order.updates_per_epoch)
    module = type(state.model)()
    module.load_state_dict(state.model.state_dict())
    for model in (module, state.model):
        model.body[1].p = 0.0

    batches = [mine.collate([data["train"][index] for index in order.indices(update)]) for update in range(12)]
    losses, settings = [], []
    state.optimizer.register_step_pre_hook(
        lambda optimizer, *_: settings.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]))
    )
    for update, batch in enumerate(batches):
        state.schedulers.apply(update)
        loss = mine.loss(state.model, batch, stage=mine.stage(update, 6, 12))
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        losses.append(loss.item())
    state.model.eval()
    with torch.no_grad():
        parts = sequential_batches(data["validation"], mine, 8, CPU, 0)
        metrics = mine.evaluate(state.model, (batch for batch, _ in parts))

    watching = Watching()
    remaining = iter(batches)
    loader = DataLoader(range(6), batch_size=1, collate_fn=lambda _: next(remaining))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=0, callbacks=[watching],
        )  # fmt: skip
        trainer.fit(module, loader, mine.data_module.val_dataloader())
    assert losses == watching.losses
    assert settings == watching.settings
    assert len({momentum for _, momentum in settings}) > 1  # OneCycleLR changes the momentum
    assert all(map(torch.equal, module.state_dict().values(), state.model.state_dict().values()))
    names = {"val_accuracy", "val_loss", "first", "metric_at_end"}
    assert metrics.keys() == {"loss", *names} and metrics["loss"] == metrics["val_loss"]
    for name in names:
        assert float(metrics[name]) == pytest.approx(trainer.callback_metrics[name].item(), rel=1e-6), name

    predictions = mine.predict(state.model, mine.collate([item.load() for item in mine.inputs(None)]))
    assert len(predictions) == 18 and predictions[0].keys() == {"class", "largest"}


def test_stopped_run_ends_in_the_bits_of_one_that_was_not(tmp_path):
    reference, values = f"{FILE}:Classifier", {"epochs": 2, "save_every_updates": 2, "hidden": 4}
    assert session(reference, tmp_path / "whole", values).status == "finished"
    for at in (3, 5):
        assert session(reference, tmp_path / "stopped", values, stop="limit", at=at).status == "paused"
    outcome = session(reference, tmp_path / "stopped", values)
    assert (outcome.status, outcome.update) == ("finished", 12)
    assert final_bits(tmp_path / "stopped") == final_bits(tmp_path / "whole")
    assert outcome.metrics["validation"].keys() >= {"loss", "val_accuracy"}


def test_arguments_are_options_and_the_data_module_is_found():
    loaded = find(f"{FILE}:Classifier")
    own = {name: loaded.options[name] for name in ("folder", "hidden", "lr")}
    assert own == {"folder": None, "hidden": 8, "lr": 0.05} and "layers" not in loaded.options
    assert (loaded.effective_batch, loaded.parts.evaluation.patience, loaded.parts.evaluation.best) == (
        8,
        3,
        ("loss", "min"),
    )
    changed, _ = choose(f"{FILE}:Classifier", {"hidden": "3", "effective_batch": 4})
    assert changed.recipe.model().body[0].out_features == 3
    assert changed.recipe.data_module.batch_size == 4
    assert {name: len(part) for name, part in changed.data().items()} == {"train": 42, "validation": 18}
    assert changed.parts.data.notes() == ["not used of Classifier: on_train_epoch_end, what training_step logs"]
    with pytest.raises(UsageError, match="has 2 recipes: Classifier, Returning"):
        find(FILE)

    with pytest.raises(UsageError, match="width has no default") as error:
        find(f"{FILE}:Returning").recipe.model()
    assert error.value.hint == "--set width=VALUE"
    returning, _ = choose(f"{FILE}:Returning", {"width": 3, "dropout": 0.5})
    data = returning.data()
    batches = (batch for batch, _ in sequential_batches(data["validation"], returning.recipe, 4, CPU, 0))
    model = returning.recipe.model()
    expected = model.layer(torch.ones(1, 3)).square().item()
    assert float(returning.recipe.evaluate(model, batches)["loss"]) == pytest.approx(expected)
    assert returning.parts.data.notes() == [
        "Returning.train_dataloader does not shuffle, but training does: the order is a function of the seed",
        "an update has 32 samples, a batch of train_dataloader 5: --set effective_batch=5 makes them equal",
        "not used of Returning: test_dataloader, since there is no test_step",
    ]


def test_object_is_estimated_with_its_own_weights():
    module = modules.Classifier(hidden=5)
    mine = recipe(module, modules.Data())
    assert mine.effective_batch == 8
    assert torch.equal(mine.model().body[0].weight, module.body[0].weight) and mine.model() is not module
    assert shoestring.estimate(mine, "kaggle-t4", precision="fp16").memory.peak_bytes > 0
    returning = modules.Returning(3)
    assert find(returning).effective_batch == 5
    with pytest.raises(UsageError, match="Classifier has no data: it has no train_dataloader"):
        find(module).recipe.batch(2)
    model = mine.model()
    assert (model.trainer.max_epochs, getattr(model.trainer, "strategy", None)) == (1, None)
    model.logger.experiment.add_image("image", 1)
    with pytest.raises(UsageError, match=r"self\.trainer\.strategy is not available"):
        model.optimizers()


def loaders_of(loader):
    return type("Loaded", (modules.Returning,), {"train_dataloader": lambda self: loader})(3)


DATASET = TensorDataset(torch.ones(6, 3))


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(DATASET, sampler=WeightedRandomSampler([1.0] * 6, 6)), "order of .* WeightedRandomSampler"),
        (DataLoader(type("Stream", (IterableDataset,), {"__iter__": iter})()), "Stream, which can only be read seq"),
        (DataLoader(DATASET, batch_size=None), "makes its batches by batch_size=None"),
        ([1, 2], "returned a list"),
    ],
)
def test_order_of_its_own_is_refused(loader, words):
    with pytest.raises(UsageError, match=words):
        find(loaders_of(loader)).data()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda layer: [SGD([layer.weight]), SGD([layer.bias])], "configure_optimizers returned 2 optimizers"),
        (lambda layer: None, "Configured.configure_optimizers returned None"),
        (
            lambda layer: {"optimizer": (made := SGD([layer.bias])), "lr_scheduler": ReduceLROnPlateau(made)},
            "ReduceLROnPlateau cannot be used: its step needs metrics",
        ),
    ],
)
def test_several_optimizers_and_metric_schedules_are_refused(make, words):
    kind = type("Configured", (modules.Returning,), {"configure_optimizers": lambda self: make(self.layer)})
    mine = recipe(kind(3))
    with pytest.raises(UsageError) as error:
        mine.optimizer(mine.model())
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("optimizer_step", lambda self, *_: None, "overrides optimizer_step"),
        ("automatic_optimization", False, "automatic_optimization = False"),
    ],
)
def test_updates_of_its_own_are_refused(name, value, words):
    kind = type("Manual", (modules.Returning,), {name: value})
    with pytest.raises(UsageError) as error:
        recipe(kind(3)).model()
    assert words in str(error.value)


def test_step_without_a_loss_is_refused():
    kind = type("Skipping", (modules.Returning,), {"training_step": lambda self, batch, batch_idx: None})
    mine = recipe(kind(3))
    with pytest.raises(UsageError, match="returned no loss"):
        mine.loss(mine.model(), [torch.ones(2, 3)])


def evaluated(mine, dataset):
    model = mine.model()
    batches = (batch for batch, _ in sequential_batches(dataset, mine, 4, CPU, 0))
    return model, {name: float(value) for name, value in mine.evaluate(model, batches).items()}


def test_training_data_are_evaluated_where_there_are_no_others():
    def measure(self, batch, *, scale=2.0):
        self.log("measured", scale * batch[0].sum())

    own = {"val_dataloader": pl.LightningModule.val_dataloader}
    without_step = find(
        type("Plain", (modules.Returning,), {**own, "validation_step": pl.LightningModule.validation_step})(3)
    )
    with_step = find(type("Measuring", (modules.Returning,), {**own, "validation_step": measure})(3))
    for loaded in (without_step, with_step):
        assert loaded.data().keys() == {"train"}
        for dataset in (loaded.data()["train"], loaded.recipe.whole()):
            model, metrics = evaluated(loaded.recipe, dataset)
            expected = {"loss": model.layer(torch.ones(1, 3)).square().item()}
            expected |= {"measured": 2 * (4 * 12 + 2 * 6) / 6} if loaded is with_step else {}
            assert metrics == pytest.approx(expected)


def test_hook_with_any_arguments_receives_those_of_one_dataloader():
    received = {}

    def hook(name):
        return lambda self, *values: received.update({name: values})

    names = ("validation_step", "on_validation_batch_start", "on_validation_batch_end", "on_validation_start")
    loaded = find(type("Any", (modules.Returning,), {name: hook(name) for name in names})(3))
    evaluated(loaded.recipe, loaded.data()["validation"])
    assert {name: len(values) for name, values in received.items()} == dict(zip(names, (2, 2, 3, 0), strict=True))
