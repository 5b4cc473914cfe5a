"""A few updates of a recipe on this machine, in a process of their own: whatever ends it is a line of the check.

The question is JSON on standard input, the answer a line of JSON for each stage that was reached:

{"stage": "data", "samples": 733, "seconds": 0.4}  the first microbatch of real data; left out without data()
{"stage": "model"}                                  model and optimizer are on the device
{"stage": "update", "seconds": 0.1, "loss": 1.1}    once for each
{"stage": "done", "bytes": 123, "device": "cpu"}    the most memory that was taken since the data were there
{"stage": "error", "message", "hint", "memory"}     what ended it instead; `memory`: whether that ran out
"""

import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoestring.errors import ShoestringError

UPDATES = 4
"""The first is of real data, the others of the largest batch that can occur, as predictions are."""
ENOUGH_SECONDS = 20.0
"""After so long two updates are enough: the second has the optimizer's states, so nothing larger follows."""

Tell = Callable[[dict[str, Any]], None]


def try_out(question: dict[str, Any], tell: Tell) -> None:
    """Run the updates that `question` asks for, telling of each stage; errors are told of like one."""
    from shoestring.engine.memory import error_message, out_of_memory

    try:
        _run(question, tell)
    except ShoestringError as error:
        tell({"stage": "error", "message": error.message, "hint": error.hint or "", "memory": False})
    except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {last.filename}, line {last.lineno}: {error_message(error)}"
        full = out_of_memory(error)
        tell({"stage": "error", "message": error_message(error) if full else where, "hint": "", "memory": full})


def _run(question: dict[str, Any], tell: Tell) -> None:
    import torch

    from shoestring.data.batches import to_device
    from shoestring.data.seeding import derive, seed_all
    from shoestring.engine.determinism import deterministic
    from shoestring.engine.environment import device_name
    from shoestring.engine.state import build
    from shoestring.engine.update import update
    from shoestring.recipe.finding import load
    from shoestring.settings import Settings

    loaded, device = load(question["reference"], question["options"]), torch.device(question["device"])
    settings = Settings.from_json(question["settings"])
    sizes = question["microbatches"]
    with deterministic():
        _warm_up(device)
        first = _first(loaded, sizes[0], device, tell)
        before = _reset(device)
        state = build(loaded, settings, device)
        tell({"stage": "model"})
        started = time.perf_counter()
        for number in range(UPDATES):
            batches = first if number == 0 and first else _largest(loaded.recipe, sizes, device, to_device)
            seed_all(derive(loaded.seed, "update", number))
            began = time.perf_counter()
            done = update(
                state.model,
                state.optimizer,
                loaded.recipe.loss,
                batches,
                samples=first[0][1] if batches is first else sum(sizes),
                mixed_precision=state.mixed_precision,
                clip_norm=loaded.parts.clip_norm,
                run=state.cuda_graphs,
            )
            loss = float(done.loss)  # waits for the device
            tell({"stage": "update", "seconds": time.perf_counter() - began, "loss": repr(loss)})
            if number and time.perf_counter() - started > ENOUGH_SECONDS:
                break
        tell({"stage": "done", "bytes": _most(device) - before, "device": device_name(device)})


def _first(loaded: Any, size: int, device: Any, tell: Tell) -> list[tuple[Any, int]]:
    """The first microbatch of the training data; none where the recipe has none."""
    from shoestring.data.loading import Loader
    from shoestring.data.order import DataOrder

    if loaded.parts.data is None:
        return []
    began = time.perf_counter()
    train = loaded.data()["train"]
    order = DataOrder(samples=len(train), effective_batch=loaded.effective_batch, seed=loaded.seed)
    with Loader(loaded.recipe, train, order, seed=loaded.seed, device=device, workers=0) as loader:
        batch = next(iter(loader.microbatches(0, size)))
    tell({"stage": "data", "samples": len(train), "seconds": time.perf_counter() - began})
    return [batch]


def _largest(recipe: Any, sizes: list[int], device: Any, to_device: Any) -> Iterator[tuple[Any, int]]:
    return ((to_device(recipe.batch(size), device), size) for size in sizes)


def _warm_up(device: Any) -> None:
    """Have the libraries load what they load once, which no estimate of a model's tensors counts."""
    import torch

    small = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(small.parameters())
    small(torch.ones(8, 64, device=device)).sum().backward()
    optimizer.step()


def _reset(device: Any) -> int:
    """Bytes taken now, from where the peak is counted."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return 0
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory is what it is now (proc(5))
    return _status("VmRSS")


def _most(device: Any) -> int:
    """The most that was taken since: by torch's allocator on a GPU, by the whole process on a CPU."""
    import torch

    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else _status("VmHWM")


def _status(name: str) -> int:
    """Bytes of a line of /proc/self/status; without it the peak since the process began."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a recipe prints is talk

    def tell(stage: dict[str, Any]) -> None:
        print(json.dumps(stage), file=answers, flush=True)

    try_out(json.load(sys.stdin), tell)


if __name__ == "__main__":
    _main()
