import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy, softmax


class Teacher:
    # block


recipe = Teacher()
model = recipe.model()
recipe.loss(model, torch.randn(2, 6, 8)).backward()
model["student"].weight.data += 1
with torch.no_grad():
    recipe.after_update(model)
torch.testing.assert_close(model["student"].weight - model["teacher"].weight, torch.full((4, 8), 0.99))
assert model.centre.any() and not model.sum.any()
