"""A GAN: one optimizer with a group for each network, and stages that decide which of the two is trained.

shoestring train examples/gan.py --run runs/gan
"""

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset


def network(outputs):
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, outputs))


class Gan:
    epochs, effective_batch = 20, 64
    stages = ("discriminator", "generator")
    best = ("distance", "min")

    def model(self):
        return nn.ModuleDict({"generator": network(2), "discriminator": network(1)})

    def optimizer(self, model):
        rates = {"generator": 2e-3, "discriminator": 4e-3}
        groups = [{"params": model[name].parameters(), "lr": rate} for name, rate in rates.items()]
        return torch.optim.Adam(groups, betas=(0.5, 0.999))

    def stage(self, update, *_):
        return self.stages[update % 2]

    def batch(self, size):
        return (torch.zeros(size, 2),)

    def loss(self, model, batch, stage):
        (real,) = batch
        generator, discriminator = model["generator"], model["discriminator"]
        discriminator.requires_grad_(stage == "discriminator")
        generated = generator(torch.randn_like(real))
        if stage == "discriminator":  # the generator gets no gradient, so it is not stepped
            return (softplus(-discriminator(real)) + softplus(discriminator(generated.detach()))).mean()
        return softplus(-discriminator(generated)).mean()

    def data(self):
        points = torch.randn(1280, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + torch.tensor([2.0, -1.0])
        return {"train": TensorDataset(points[:1024]), "validation": TensorDataset(points[1024:])}

    def evaluate(self, model, batches):
        real = torch.cat([points for (points,) in batches])
        generated = model["generator"](torch.randn_like(real))
        return {"distance": float((generated.mean(0) - real.mean(0)).norm())}
