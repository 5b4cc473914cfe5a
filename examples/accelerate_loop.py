"""A loop with Accelerate that stops in time or on a signal, and continues with the same bits, also after a kill."""

import copy
from pathlib import Path

import torch
from accelerate import Accelerator

from shoestring import pieces as p

POINTS = torch.randn(960, 2, generator=torch.Generator().manual_seed(0))  # 15 updates of 64, each of 4 microbatches


def loss(model, points):
    return torch.nn.functional.mse_loss(model(points), points.norm(dim=1, keepdim=True))


def train(run: Path, limit_seconds: float | None = None, updates: int = 480, seed: int = 0) -> None:
    order, store = p.DataOrder(samples=len(POINTS), effective_batch=64, seed=seed), p.Store(run / "checkpoints")
    with p.session(limit_seconds) as stop, p.deterministic():
        accelerator = Accelerator(gradient_accumulation_steps=4)
        p.seed_all(p.derive(seed, "model"))
        model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=updates)
        parts = dict(
            zip(("model", "optimizer", "schedule"), accelerator.prepare(model, optimizer, schedule), strict=True)
        )
        model, optimizer, schedule = parts.values()
        update, stop_reason = 0, None
        if saved := store.load():
            update = saved.update
            for name, part in parts.items():  # with mixed_precision="fp16", accelerator.scaler is another part
                part.load_state_dict(copy.deepcopy(saved.state[name]))  # the loaded tensors are memory-mapped
        while update < updates and not stop_reason:
            with stop.deadline.measure("update"):
                p.seed_all(p.derive(seed, "update", update))
                for indices in p.split(order.indices(update), 16):
                    with accelerator.accumulate(model):
                        accelerator.backward(loss(model, POINTS[indices].to(accelerator.device)))
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
            update, stop_reason = update + 1, stop.reason()
            if stop_reason or update == updates or update % 100 == 0:
                with stop.deadline.measure("save"):
                    store.save(update, {name: part.state_dict() for name, part in parts.items()})
