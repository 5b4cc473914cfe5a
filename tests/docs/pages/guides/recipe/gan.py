import torch
from torch import nn
from torch.nn.functional import softplus


class Gan:
    # block


model = nn.ModuleDict({"generator": nn.Linear(4, 4), "discriminator": nn.Linear(4, 1)})
for update in range(2):
    stage = Gan().stage(update)
    Gan().loss(model, (torch.randn(8, 4),), stage).backward()
    generator_has_gradient = model["generator"].weight.grad is not None
    assert generator_has_gradient == (stage == "generator")
