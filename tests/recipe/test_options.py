import dataclasses
import json

import numpy as np
import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.finding import choose, find, load


class Mine:
    epochs = 5
    effective_batch = 4

    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...
    def current_epochs(self):
        return self.epochs


def test_attributes_of_a_recipe_are_its_defaults():
    adaptation = dataclasses.asdict(Adaptation())
    common = {"epochs": 5, "effective_batch": 4, "seed": 0, "subset": None, "max_updates": None, "ema": None}
    absent = {"fold": None, "rows": None, "row_tokens": None, "lengths": None}
    assert dict(find(Mine()).options) == {**common, **absent, **adaptation}


def test_options_are_set_on_a_copy_of_the_recipe():
    mine = Mine()
    loaded = load(mine, {"epochs": "7", "effective_batch": 8})
    assert (loaded.epochs, loaded.effective_batch) == (7, 8)
    assert loaded.recipe.current_epochs() == 7
    assert mine.current_epochs() == 5  # the original object keeps its default


def test_invalid_values_are_refused():
    with pytest.raises(UsageError) as caught:
        load(Mine(), {"epochs": 0, "effective_batch": -1, "max_updates": 0, "ema": 1.0})
    assert len(caught.value.problems) == 4


def test_methods_are_not_values_of_options():
    class WithAverage(Mine):
        max_updates = 7

        def ema(self): ...

    loaded = load(WithAverage(), {"epochs": 3})
    assert (loaded.ema, loaded.max_updates, loaded.total_updates(2), loaded.total_updates(9)) == (None, 7, 6, 7)
    assert callable(loaded.recipe.ema)


def test_a_size_has_defaults_of_its_own():
    """Only for the recipe's own data and the length of run that they were chosen for; not for a run stored before."""
    tiny, full = choose("vqa", {"size": "tiny"})[0], choose("vqa", {})[0]
    assert (tiny.epochs, tiny.effective_batch, full.epochs) == (2, 16, 100)
    assert choose("vqa", {"size": "tiny", "effective_batch": 4})[0].effective_batch == 4
    assert choose("vqa", {"size": "tiny", "max_updates": 40})[0].epochs == 100
    assert choose("vqa", {"size": "tiny"}, stored=True)[0].epochs == 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class WidthOptions:
    width: int = 8


class Configured(Mine):
    epochs, effective_batch = 20, 64

    def __init__(self, options: WidthOptions = WidthOptions()) -> None:
        self.options = options


def test_attributes_are_defaults_besides_own_options() -> None:
    loaded = load(Configured(), {"width": 16, "epochs": 5})
    assert (loaded.options["width"], loaded.epochs, loaded.effective_batch) == (16, 5, 64)
    assert (loaded.recipe.options.width, loaded.recipe.epochs, loaded.recipe.effective_batch) == (16, 5, 64)
    assert Configured.epochs == 20


def test_options_that_are_no_dataclass_are_explained() -> None:
    class Configuration:
        width = 8

    for options, message, hint in (
        ({"width": 8}, "are of the type builtins.dict, not an instance of a dataclass", "such as `config`"),
        (Configuration(), "Configuration, not an instance of a dataclass", "fields"),
        (WidthOptions, "are the class WidthOptions, not an instance of it", "options = WidthOptions()"),
    ):
        with pytest.raises(UsageError) as error:
            find(type("Configured", (Mine,), {"options": options})())
        assert message in error.value.message and hint in error.value.hint
    with pytest.raises(UsageError, match=r"Fixed\(options\) is not possible") as error:
        find(type("Fixed", (Mine,), {"options": WidthOptions()})())
    assert "self.options = options" in error.value.hint


@pytest.mark.parametrize("value", [float("nan"), (1, 2), b"x", "\ud800", 10**400, object()])
def test_defaults_that_a_plan_could_not_store_are_refused(value) -> None:
    @dataclasses.dataclass(frozen=True)
    class Options:
        other: object = value

    with pytest.raises(UsageError, match="the plan of a run could not store them") as refused:
        find(_recipe_with(Options()))
    assert refused.value.problems == (f"other is {value!r:.100} of type {type(value).__name__}",)


def test_number_of_numpy_is_a_default() -> None:
    @dataclasses.dataclass(frozen=True)
    class Options:
        epochs: int = np.int64(3)  # type: ignore[assignment]

    assert json.dumps(dict(find(_recipe_with(Options())).options)).startswith('{"epochs": 3')


def _recipe_with(options: object) -> object:
    class Recipe(Mine):
        def __init__(self, options: object = options) -> None:
            self.options = options

    return Recipe()
