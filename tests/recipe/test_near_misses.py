"""Names of other frameworks in a recipe's class."""

from dataclasses import fields

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.recipe.finding import find
from shoestring.recipe.installed import built_in_names
from shoestring.recipe.near_misses import NEAR_MISSES
from shoestring.recipe.parts import Data, Evaluation, Learning, Use


class Plain:
    models, labels, batches = (), (), ()

    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


class Inherited(Plain):
    batch_size, lr = 8, 0.5

    def configure_optimizers(self): ...


def test_all_names_are_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match="which would be ignored") as refused:
        find(type("Mine", (Inherited,), {"metrics": None})())
    assert refused.value.status == 2
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        *("configure_optimizers", "metrics", "batch_size", "lr")
    ]
    assert "effective_batch" in str(refused.value) and "optimizer(model)" in str(refused.value)
    path = tmp_path / "mine.py"
    methods = "".join(f"    def {name}(self, *_): ...\n" for name in ("model", "batch", "loss", "collate_fn"))
    path.write_text(f"class Mine:\n{methods}")
    with pytest.raises(UsageError, match=r"mine\.py has names[^~]*collate_fn: the name is collate\(samples\)"):
        find(str(path))
    assert find(str(path), is_new=False).name == "mine.py"  # a run that was begun with it goes on


def test_names_that_are_the_recipes_own_are_accepted():
    own = {"own_names": ("batch_size", "lr", "configure_optimizers")}
    instance = type("Mine", (Inherited,), own)()
    instance.num_epochs = 3
    assert find(instance).epochs == 1
    assert find(Plain())
    with pytest.raises(UsageError, match="not a sequence of names"):
        find(type("Mine", (Plain,), {"own_names": "lr"})())

    class LightningModule(torch.nn.Module):
        def training_step(self): ...

    assert find(type("Mine", (Inherited, LightningModule), {})())
    assert find(type("Mine", (Plain, type("Base", (), {"lr": 1, "__module__": "torch.nn"})), {})())


def test_built_in_recipes_pass_and_no_part_is_refused():
    for name in built_in_names():
        find(name)
    parts = {part.name for group in (Learning, Data, Evaluation, Use) for part in fields(group)}
    assert not NEAR_MISSES.keys() & parts
