"""A custom recipe that classifies the points of two spirals. Three methods suffice for a plan; training needs data().

shoestring plan  examples/spiral.py --on kaggle-t4
shoestring train examples/spiral.py --run runs/spiral
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Spiral:
    epochs = 60
    effective_batch = 64
    learning_rate = 0.01

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def batch(self, size):
        return torch.zeros(size, 2), torch.zeros(size, 1)

    def loss(self, model, batch):
        points, arm = batch
        return nn.functional.binary_cross_entropy_with_logits(model(points), arm)

    def data(self):
        arm = (torch.arange(1200) % 2).float()
        turn = torch.rand(1200, generator=torch.Generator().manual_seed(0)).sqrt() * 9
        angle = turn + arm * torch.pi
        points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 9
        spirals = TensorDataset(points, arm[:, None])
        return {
            "train": torch.utils.data.Subset(spirals, range(1000)),
            "validation": torch.utils.data.Subset(spirals, range(1000, 1200)),
        }
