"""The first loss of the original code, with the weights, the batch and the random numbers of a recipe's first update.

python -m benchmarks.foreign_code.originals NAME RECIPE   (in a folder with the code, as `run.py` prepares it)
"""

import contextlib
import io
import pickle
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shoestring.base.settings import Settings
from shoestring.recipe.finding import find
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.building import build
from shoestring.training.engine.determinism import deterministic

CPU = torch.device("cpu")


@dataclass(frozen=True)
class FirstUpdate:
    """The first update of a recipe, before it is made."""

    model: Any
    batch: Any
    indices: list[int]
    """The samples of the batch."""
    seed: Callable[[], None]
    """Seeds all generators for the update."""


def nanogpt(first: FirstUpdate) -> float:
    """Run `train.py` for one iteration. Its windows start at the given samples."""
    import model as module

    (Path("data") / "random" / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 96}))
    original_init, original_forward, weights = module.GPT.__init__, module.GPT.forward, first.model.state_dict()
    starts = torch.tensor(first.indices) * 7

    def init(self: Any, config: Any) -> None:
        original_init(self, config)
        self.load_state_dict(weights)

    def forward(self: Any, *arguments: Any) -> Any:
        if self.training:
            first.seed()
        return original_forward(self, *arguments)

    module.GPT.__init__, module.GPT.forward, torch.randint = init, forward, lambda *_: starts
    sizes = f"--batch_size={len(starts)} --block_size=64 --n_layer=2 --n_head=4 --n_embd=64 --dropout=0.1"
    fixed = "--dataset=random --device=cpu --compile=False --dtype='float32' --max_iters=0 --eval_iters=1"
    sys.argv = f"train.py {fixed} --gradient_accumulation_steps=1 {sizes}".replace("'", "").split()
    return _printed(r"iter 0: loss ([\d.]+)", "train.py")


def dcgan(first: FirstUpdate) -> float:
    """Run `main.py` for one iteration."""
    for name in ("generator", "discriminator"):
        torch.save(getattr(first.model, name).state_dict(), f"{name}.pth")

    class Batches:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Any:
            first.seed()
            yield first.batch

    torch.utils.data.DataLoader = Batches
    sizes = "--nz 16 --ngf 8 --ndf 8 --batchSize 8"
    weights = "--netG generator.pth --netD discriminator.pth"
    sys.argv = f"main.py --dataset fake --workers 0 --manualSeed 1 --dry-run {sizes} {weights}".split()
    return _printed(r"Loss_D: ([\d.]+)", "main.py")


def vit_mixup(first: FirstUpdate) -> float:
    """Compute the loss as timm's `train.py` does for a batch that is mixed."""
    from timm.loss import SoftTargetCrossEntropy

    first.seed()
    return float(SoftTargetCrossEntropy()(first.model(first.batch[0]), first.batch[1]))


def unet(first: FirstUpdate) -> float:
    """Compute the loss as `train_unconditional.py` does with `prediction_type=epsilon`."""
    from diffusers import DDPMScheduler

    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    first.seed()
    batch = first.batch
    noise = torch.randn(batch.shape)
    timesteps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (batch.shape[0],)).long()
    output = first.model(noise_scheduler.add_noise(batch, noise, timesteps), timesteps).sample
    return float(torch.nn.functional.mse_loss(output.float(), noise.float()))


def graphs(first: FirstUpdate) -> float:
    """Compute the loss as `mutag_gin.py` does, with a batch of its `DataLoader`."""
    from torch_geometric.loader import DataLoader

    dataset = find(sys.argv[2]).recipe.data()["train"]
    data = next(iter(DataLoader([dataset[index] for index in first.indices], batch_size=len(first.indices))))
    first.seed()
    return float(torch.nn.functional.cross_entropy(first.model(data), data.y))


def _printed(pattern: str, script: str) -> float:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(script, run_name="__main__")
    match = re.search(pattern, output.getvalue())
    assert match, output.getvalue()[-500:]
    return float(match[1])


def main() -> None:
    name, reference = sys.argv[1:3]
    loaded = find(reference)
    sys.path.insert(0, str(Path.cwd()))
    samples = loaded.data()["train"]
    order = DataOrder.of(samples, effective_batch=loaded.effective_batch, seed=loaded.seed)
    with deterministic():
        state = build(loaded, Settings(precision="fp32", micro_batch=loaded.effective_batch), CPU)
        with Loader(loaded.recipe, samples, order, seed=order.seed, device=CPU, workers=0) as loader:
            batch, _ = next(iter(loader.microbatches(0, loaded.effective_batch)))
        seed = partial(seed_all, derive(loaded.seed, "update", 0))
        value = globals()[name](FirstUpdate(state.model, batch, list(order.indices(0)), seed))
    print(value)


if __name__ == "__main__":
    main()
