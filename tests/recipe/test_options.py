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
    def epochs_seen(self):
        return self.epochs


def test_what_a_recipe_has_by_these_names_are_its_defaults():
    adapted = dataclasses.asdict(Adaptation())
    assert dict(find(Mine()).options) == {"epochs": 5, "effective_batch": 4, "seed": 0, "subset": None, **adapted}


def test_options_reach_the_recipe_itself():
    mine = Mine()
    found = load(mine, {"epochs": "7", "effective_batch": 8})
    assert (found.epochs, found.effective_batch) == (7, 8)
    assert found.recipe.epochs_seen() == 7
    assert mine.epochs_seen() == 5  # the object's own default stays


def test_values_that_cannot_be_are_refused():
    with pytest.raises(UsageError) as caught:
        load(Mine(), {"epochs": 0, "effective_batch": -1})
    assert len(caught.value.problems) == 2
