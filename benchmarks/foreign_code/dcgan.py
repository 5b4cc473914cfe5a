"""PyTorch's example DCGAN with a gradient penalty: discriminator and generator take turns by `stage`.

The networks are those of the example's `main.py`, whose statements before the training loop are executed.
"""

import ast
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

NOISE, IMAGE = 16, 64
ARGUMENTS = f"main.py --dataset fake --nz {NOISE} --ngf 8 --ndf 8 --workers 0 --manualSeed 1 --batchSize 8"


def definitions() -> dict[str, Any]:
    """Return the names that `main.py` defines, without its training loop."""
    tree = ast.parse((Path(__file__).parent / "main.py").read_text())
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.For)]
    names: dict[str, Any] = {"__name__": "main", "print": lambda *_: None}
    arguments, sys.argv = sys.argv, ARGUMENTS.split()
    try:
        exec(compile(tree, "main.py", "exec"), names)
    finally:
        sys.argv = arguments
    return names


class Networks(nn.Module):
    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self.generator = names["Generator"](1).apply(names["weights_init"])
        self.discriminator = names["Discriminator"](1).apply(names["weights_init"])


class DCGAN:
    epochs, effective_batch, penalty = 2, 8, 10.0
    stages = ("discriminator", "generator")

    def model(self) -> Any:
        return Networks(definitions())

    def batch(self, size: int) -> Any:
        return torch.zeros(size, 3, IMAGE, IMAGE), torch.zeros(size, dtype=torch.long)

    def data(self) -> Any:
        return {"train": torch.utils.data.Subset(definitions()["dataset"], range(96))}

    def optimizer(self, model: Any) -> Any:
        groups = [{"params": model.discriminator.parameters()}, {"params": model.generator.parameters()}]
        return torch.optim.Adam(groups, lr=2e-4, betas=(0.5, 0.999))

    def stage(self, update: int, *_: int) -> str:
        return self.stages[update % 2]

    def loss(self, model: Any, batch: Any, stage: str = "discriminator") -> Any:
        images = batch[0]
        ones, zeros = torch.ones(len(images), device=images.device), torch.zeros(len(images), device=images.device)
        noise = torch.randn(len(images), NOISE, 1, 1, device=images.device)
        compare = nn.functional.binary_cross_entropy
        model.discriminator.requires_grad_(stage == "discriminator")
        if stage == "generator":
            return compare(model.discriminator(model.generator(noise)), ones)
        with torch.no_grad():
            fake = model.generator(noise)
        share = torch.rand(len(images), 1, 1, 1, device=images.device)
        mixed = (share * images + (1 - share) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(model.discriminator(mixed).sum(), mixed, create_graph=True)
        penalty = ((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean()
        score = compare(model.discriminator(images), ones) + compare(model.discriminator(fake), zeros)
        return score + self.penalty * penalty


class WithoutPenalty(DCGAN):
    """The loss of the example itself."""

    penalty = 0.0
