import dataclasses

import torch

from shoestring.base.settings import Settings
from shoestring.recipe.finding import find
from shoestring.training.engine.environment import environment
from shoestring.training.stored_settings import OF_THE_RESULT


def test_the_stored_settings_are_those_that_a_checkpoint_is_compared_by():
    facts = environment(Settings(micro_batch=4, precision="fp32"), torch.device("cpu"), find("temporal"))
    names = {field.name for field in dataclasses.fields(Settings)}
    assert set(OF_THE_RESULT) == facts.keys() & names
