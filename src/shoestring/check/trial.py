"""A trial: a few updates of a recipe on this machine, in a child process, so that a crash becomes a finding.

The request is a JSON object on standard input. For each stage, a line of JSON is written to standard output:

{"stage": "data", "samples": 733, "seconds": 0.4}  the first microbatch of real data; omitted without data()
{"stage": "loading", "samples": 64, "seconds": 0.2} more samples were loaded, and how long that took in this process
{"stage": "model", "stages": 1}                     model and optimizer are on the device; the stages of the loss
{"stage": "update", "seconds": 0.1, "loss": 1.1}    one for each update
{"stage": "done", "bytes": 123, "device": "cpu"}    the peak of memory in use since the data was loaded
{"stage": "halves", "difference": "the loss ..."}   the loss of a microbatch differs from that of its halves
{"stage": "error", "message", "hint", "memory"}     the error that ended the trial; `memory` is true for out-of-memory
"""

import gc
import json
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.check.child import read_request
from shoestring.errors import ShoestringError
from shoestring.packages.broken import broken_library

if TYPE_CHECKING:
    from shoestring.settings import MemoryFormat, Settings

UPDATES = 4
"""The first update uses real data, the others the largest batch that can occur, as predictions do. If the recipe
declares stages, they take turns, each at least twice."""
ENOUGH_SECONDS = 20.0
"""After this time two updates are enough: the second one has the optimizer's states, so the peak is reached. With
stages, one more than these are enough, because each stage has created its states."""

LOADED_SAMPLES, LOADING_SECONDS = 256, 5.0
"""The measurement of loading ends after so many samples or seconds."""

Report = Callable[[dict[str, Any]], None]


def run_trial(request: dict[str, Any], report: Report) -> None:
    """Run the updates of `request` and report each stage; an error is reported as a stage as well."""
    from shoestring.engine.memory import NoMemoryError, error_message, out_of_memory_message

    try:
        _run_updates(request, report)
    except ShoestringError as error:
        is_memory = isinstance(error, NoMemoryError)
        report({"stage": "error", "message": error.message, "hint": error.hint or "", "memory": is_memory})
    except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
        if broken := broken_library(error):
            report({"stage": "error", "message": broken.message, "hint": broken.hint, "memory": False})
            return
        frame = traceback.extract_tb(error.__traceback__)[-1]
        located_message = f"{type(error).__name__} in {frame.filename}, line {frame.lineno}: {error_message(error)}"
        message = out_of_memory_message(error)
        is_memory = message is not None
        report({"stage": "error", "message": message or located_message, "hint": "", "memory": is_memory})


def _run_updates(request: dict[str, Any], report: Report) -> None:
    import torch

    from shoestring.engine.determinism import deterministic
    from shoestring.engine.environment import device_name
    from shoestring.engine.first_microbatch import FirstMicrobatch
    from shoestring.engine.halves import compare_with_halves
    from shoestring.engine.state import build
    from shoestring.recipe.finding import load
    from shoestring.recipe.losses import losses_by_stage
    from shoestring.settings import Settings

    loaded, device = load(request["reference"], request["options"]), torch.device(request["device"])
    settings = Settings.from_json(request["settings"])
    sizes = request["microbatches"]
    make_batch = (
        loaded.parts.packed_batch if settings.packing == "yes" and loaded.parts.packed_batch else loaded.recipe.batch
    )
    with deterministic():
        warm_up(device)
        loader, first_batches = _load_first_batch(loaded, sizes[0], device, report, settings)
        initial_bytes = reset_peak(device)
        state = build(loaded, settings, device)
        losses = losses_by_stage(loaded.recipe)
        report({"stage": "model", "stages": len(losses)})
        started = time.perf_counter()
        for number in range(max(UPDATES, 2 * len(losses))):
            use_first = number == 0 and bool(first_batches)
            batches = first_batches if use_first else batches_on(device, sizes, make_batch, settings.memory_format)
            samples = first_batches[0][1] if use_first else sum(sizes)
            loss, seconds = make_update(loaded, state, losses[number % len(losses)], batches, samples, number)
            report({"stage": "update", "seconds": seconds, "loss": repr(loss)})
            if number >= len(losses) and time.perf_counter() - started > ENOUGH_SECONDS:
                break
        report({"stage": "done", "bytes": peak_bytes(device) - initial_bytes, "device": device_name(device)})
        if loader and not (loaded.parts.whole_batch or loaded.parts.trainer):
            first = FirstMicrobatch(
                model=state.model,
                make_loss=lambda: losses[0],
                loader=loader,
                micro_batch=sizes[0],
                mixed_precision=state.mixed_precision,
                device=device,
                seed=loaded.seed,
            )
            difference = compare_with_halves(first)
            if difference:
                report({"stage": "halves", "difference": difference.text})


def make_update(
    loaded: Any, state: Any, loss: Any, batches: Iterable[tuple[Any, int]], samples: int, number: int
) -> tuple[float, float]:
    """Make update number `number` of a trial. Return its loss and its seconds, those to make its batches included."""
    from shoestring.data.seeding import derive, seed_all
    from shoestring.engine.update import update
    from shoestring.recipe.losses import clip_norm

    seed_all(derive(loaded.seed, "update", number))
    start = time.perf_counter()
    result = update(
        state.model,
        state.optimizer,
        loss,
        batches,
        samples=samples,
        mixed_precision=state.mixed_precision,
        clip_norm=clip_norm(loaded.parts, loss),
        run=state.cuda_graphs,
    )
    value = float(result.loss)  # synchronizes with the device
    state.reset_trained()  # as in training, after a loss that freezes parameters for its stage
    return value, time.perf_counter() - start


def _load_first_batch(
    loaded: Any, size: int, device: Any, report: Report, settings: "Settings"
) -> tuple[Any, list[tuple[Any, int]]]:
    """Return a loader of the training data and their first microbatch; None and [] if the recipe has no data."""
    from shoestring.data.loading import Loader
    from shoestring.data.order import DataOrder
    from shoestring.data.seeded import seeded_data

    if loaded.parts.data is None:
        return None, []
    start = time.perf_counter()
    train = seeded_data(loaded)["train"]
    order = DataOrder(samples=len(train), effective_batch=loaded.effective_batch, seed=loaded.seed)
    loader = Loader(
        loaded.recipe,
        train,
        order,
        seed=loaded.seed,
        device=device,
        workers=0,
        packing=settings.packing == "yes",
        memory_format=settings.memory_format,
    )
    batch = next(iter(loader.microbatches(0, size)))
    report({"stage": "data", "samples": len(train), "seconds": time.perf_counter() - start})
    samples, seconds = _measure_loading(loader, order.updates_per_epoch, size)
    report({"stage": "loading", "samples": samples, "seconds": seconds})
    return loader, [batch]


def _measure_loading(loader: Any, updates: int, size: int) -> tuple[int, float]:
    """Load further updates in this process, the first one again if there is no other. Return samples and seconds."""
    samples, start = 0, time.perf_counter()
    for update in range(1, updates) if updates > 1 else [0]:
        for _, count in loader.microbatches(update, size):
            samples += count
            seconds = time.perf_counter() - start
            if samples >= LOADED_SAMPLES or seconds > LOADING_SECONDS:
                return samples, seconds
    return samples, time.perf_counter() - start


def batches_on(
    device: Any, sizes: Iterable[int], make_batch: Callable[[int], Any], memory_format: "MemoryFormat | None"
) -> Iterator[tuple[Any, int]]:
    """Yield a batch of each size on the device, with its size; each is made only when it is needed."""
    from shoestring.data.batches import to_device

    for size in sizes:
        yield to_device(make_batch(size), device, memory_format), size


def warm_up(device: Any) -> None:
    """Make the libraries allocate their one-time memory, which an estimate of a model's tensors does not include."""
    import torch

    layer = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(8, 64, device=device)).sum().backward()
    optimizer.step()


def reset_peak(device: Any) -> int:
    """Reset the peak of memory in use, and return the bytes to subtract from it."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return 0
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory (proc(5))
    return read_status("VmRSS")


def peak_bytes(device: Any) -> int:
    """Return the peak of memory in use: of torch's allocator on a GPU, of the whole process on a CPU."""
    import torch

    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else read_status("VmHWM")


def read_status(name: str) -> int:
    """Read a line of /proc/self/status as bytes; without that file, return the peak since the process started."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reporting() -> Report:
    """Return the function that writes a stage to standard output, where nothing else is written from now on."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the recipe's own output goes to stderr

    def report(stage: dict[str, Any]) -> None:
        print(json.dumps(stage), file=output, flush=True)

    return report


if __name__ == "__main__":
    run_trial(read_request(), reporting())
