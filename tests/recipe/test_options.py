import dataclasses

import pytest

from shoestring.errors import UsageError
from shoestring.recipe.finding import find, load
from shoestring.recipe.options import Adaptation


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
    assert dict(find(Mine()).options) == {"epochs": 5, "effective_batch": 4, "seed": 0, "subset": None, **adaptation}


def test_options_are_set_on_a_copy_of_the_recipe():
    mine = Mine()
    loaded = load(mine, {"epochs": "7", "effective_batch": 8})
    assert (loaded.epochs, loaded.effective_batch) == (7, 8)
    assert loaded.recipe.current_epochs() == 7
    assert mine.current_epochs() == 5  # the original object keeps its default


def test_invalid_values_are_refused():
    with pytest.raises(UsageError) as caught:
        load(Mine(), {"epochs": 0, "effective_batch": -1})
    assert len(caught.value.problems) == 2


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
