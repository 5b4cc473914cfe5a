"""Language models of two or three blocks, some of which overflow in fp16."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, VOCABULARY = 16, 200


class Mlp(nn.Module):
    """Its hidden values are about `scale`, its outputs about the square of it."""

    def __init__(self, scale):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        with torch.no_grad():
            for layer in (self.up_proj, self.down_proj):
                layer.weight.mul_(scale)

    def forward(self, values):
        return self.down_proj(torch.relu(self.up_proj(values)))


class Block(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp(scale)

    def forward(self, values):
        return values + self.mlp(self.norm(values))


class Model(nn.Module):
    """The outputs of blocks with a `scale` of 2000 overflow in fp16."""

    def __init__(self, scales):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(map(Block, scales))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        values = self.embed(tokens)
        for layer in self.layers:
            values = layer(values)
        return self.head(self.norm(values))


class Tokens:
    """Predicts each token from itself."""

    epochs = 2
    effective_batch = 4
    learning_rate = 0.01
    scales: tuple[float, ...] = (1, 2000, 1)

    def model(self):
        return Model(self.scales)

    def batch(self, size):
        return torch.zeros(size, 8, dtype=torch.long)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    def data(self):
        return torch.randint(0, VOCABULARY, (12, 8), generator=torch.Generator().manual_seed(1))


class Normal(Tokens):
    scales = (1, 1)


class Unmendable(Normal):
    """Its loss overflows whatever its modules compute in."""

    def loss(self, model, batch):
        large = torch.full((1, 2), 300.0)
        return super().loss(model, batch) + 1e-9 * functional.linear(large, large).float().sum()
