"""A custom training loop that stops in time or on a signal, resumes bit for bit and survives out-of-memory."""

import copy
from pathlib import Path

import torch

from shoestring import pieces as p

POINTS = torch.randn(960, 2, generator=torch.Generator().manual_seed(0))


def loss(model, points):
    return torch.nn.functional.mse_loss(model(points), points.norm(dim=1, keepdim=True))


def train(run: Path, limit_seconds: float | None = None, updates: int = 480, seed: int = 0) -> None:
    order, store = p.DataOrder(samples=len(POINTS), effective_batch=64, seed=seed), p.Store(run / "checkpoints")
    with p.session(limit_seconds) as stop, p.deterministic():
        p.seed_all(p.derive(seed, "model"))
        model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
        optimizer, fp32 = torch.optim.AdamW(model.parameters(), lr=0.01), p.mixed_precision("fp32", torch.device("cpu"))
        recovering, size, update, stop_reason = p.Recovering(model, optimizer, fp32), 64, 0, None
        if saved := store.load():
            model.load_state_dict(saved.state["model"])
            optimizer.load_state_dict(copy.deepcopy(saved.state["optimizer"]))  # the loaded tensors are memory-mapped
            size, update = saved.state["size"], saved.update

        def attempt(size):  # the whole update number `update`; on out-of-memory it is repeated with a smaller size
            p.seed_all(p.derive(seed, "update", update))
            batches = ((POINTS[part], len(part)) for part in p.split(order.indices(update), size))
            return p.update(model, optimizer, loss, batches, samples=64, mixed_precision=fp32)

        while update < updates and not stop_reason:
            with stop.deadline.measure("update"):
                _, size = recovering.run(attempt, size)
            update, stop_reason = update + 1, stop.reason()
            if stop_reason or update == updates or update % 100 == 0:
                with stop.deadline.measure("save"):
                    store.save(update, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "size": size})
