"""Updates with growing microbatches, in a child process: what fits is measured where nothing can be predicted.

The request is a JSON object on standard input. For each stage, a line of JSON is written to standard output:

{"stage": "size", "micro_batch": 8, "bytes": 123, "seconds": 0.1}  an update of one such microbatch: the peak of memory
                                                                   (of several stages of the loss, the largest values)
{"stage": "disk", "full": 123, "light": 45}                        the bytes of a checkpoint and of weights alone
{"stage": "full", "micro_batch": 16, "message": "..."}             this microbatch does not fit, or would not
{"stage": "data"}                                                  samples of the data are used, because batch() fails
{"stage": "error", "micro_batch": 2, "message", "problems", "hint"}  an error of the recipe's code
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from shoestring.base.errors import ShoestringError
from shoestring.base.failures import describe, exits_as_errors
from shoestring.planning.costs import COPY_SHARE
from shoestring.planning.estimate.disk import SMALL_FILES
from shoestring.runs.check.child import read_request
from shoestring.runs.check.memory import peak_bytes, read_status, reset_peak
from shoestring.runs.check.reporting import Report, reporting

_HOST_SHARE = 0.9
"""The share of free host memory that an attempt may need. The kernel ends a process that needs more than there is."""


def try_sizes(request: dict[str, Any], report: Report) -> None:
    """Make an update with each of the sizes, in their order, while they fit and `seconds` have not passed."""
    try:
        with exits_as_errors():
            _try_sizes(request, report)
    except Exception as error:  # noqa: BLE001 - the recipe's code may raise anything
        _report_error(report, None, error)


def _try_sizes(request: dict[str, Any], report: Report) -> None:
    import torch

    from shoestring.base.settings import Settings
    from shoestring.recipe.finding import load
    from shoestring.training.data.batches import collate_function, fetch
    from shoestring.training.data.seeded import seeded_data
    from shoestring.training.engine.building import build
    from shoestring.training.engine.determinism import deterministic

    loaded, device = load(request["reference"], request["options"]), torch.device(request["device"])
    settings = Settings.from_json(request["settings"])
    with deterministic():
        host_bytes = _usable_host_bytes()
        train: Any = (
            seeded_data(loaded)["train"] if loaded.parts.data.data else None
        )  # as in training, it remains in memory
        losses = _losses(loaded, train)
        state = build(loaded, settings, device)

        def real_batch(size: int) -> Any:
            indices = [index % len(train) for index in range(size)]
            return fetch(train, collate_function(loaded.recipe), indices, seed=loaded.seed, epoch=0)

        trial = partial(_grow, request, report, loaded, state, losses, device, host_bytes)
        if not trial(loaded.recipe.batch) and train is not None and not loaded.parts.learning.trainer:
            report({"stage": "data"})
            trial(real_batch)


def _usable_host_bytes() -> float:
    from shoestring.training.monitor.host_memory import host_memory

    host = host_memory()
    return _HOST_SHARE * (host.limit_bytes - host.used_bytes) + read_status("VmRSS")


def _losses(loaded: Any, train: Any) -> Sequence[Any]:
    """Return the loss of each stage that the recipe declares; if it declares none, that of the run's first update."""
    from shoestring.recipe.contract import updates_per_epoch
    from shoestring.recipe.losses import loss_at, losses_by_stage

    if loaded.parts.learning.stage is None or loaded.parts.learning.stages is not None or train is None:
        return losses_by_stage(loaded.recipe)
    updates = updates_per_epoch(len(train), loaded.effective_batch)
    return [loss_at(loaded.recipe, 0, updates, loaded.total_updates(updates))]


def _grow(
    request: dict[str, Any],
    report: Report,
    loaded: Any,
    state: Any,
    losses: Sequence[Any],
    device: Any,
    host_bytes: float,
    make_batch: Callable[[int], Any],
) -> bool:
    """Make updates with batches of `make_batch(size)`. Return False if the recipe's code failed with every size."""
    from shoestring.training.engine.memory import Failure, catch_out_of_memory

    sizes, memory_format = list(request["sizes"]), request["settings"].get("memory_format")
    started = time.perf_counter()
    fitting = 0
    for size in sizes:
        rounds = 1 if fitting else 2
        try:
            update = partial(_update, loaded, state, losses, device, make_batch, memory_format, size, rounds)
            result = catch_out_of_memory(update)
        except Exception as error:  # noqa: BLE001 - the recipe's code may raise anything
            _report_error(report, size, error)
            state.optimizer.zero_grad(set_to_none=True)  # the failed update may have left gradients
            if fitting:
                break
            continue  # some losses need more than a few samples
        if isinstance(result, Failure):
            report({"stage": "full", "micro_batch": size, "message": result.message})
            return True
        used_bytes, seconds = result
        report({"stage": "size", "micro_batch": size, "bytes": used_bytes, "seconds": seconds})
        if not fitting:
            full_bytes = _report_disk(report, state)
            initial_bytes = read_status("VmRSS")  # with the optimizer's states
        fitting = size
        following = _following(sizes, size)
        projected_bytes = initial_bytes + max(0, used_bytes - initial_bytes) * following / size
        if device.type == "cpu" and following > size and projected_bytes > host_bytes - COPY_SHARE * full_bytes:
            report({"stage": "full", "micro_batch": following, "message": "the host's memory would be full"})
            break
        round_seconds = seconds * len(losses)
        if time.perf_counter() - started + round_seconds * following / size > request["seconds"]:
            break
    return fitting > 0


def _following(sizes: Sequence[int], size: int) -> int:
    """Return the size after `size`, or `size` itself if it is the last."""
    return next((larger for larger in sizes if larger > size), size)


def _update(
    loaded: Any,
    state: Any,
    losses: Sequence[Any],
    device: Any,
    make_batch: Callable[[int], Any],
    memory_format: Any,
    size: int,
    rounds: int,
) -> tuple[int, float]:
    """Make `rounds` updates with each of the losses; return the last round's largest peak of memory and seconds.

    The second round of a process has the optimizer's states from its beginning.
    """
    measured = []
    for number in range(rounds * len(losses)):
        reset_peak(device)
        batches = _batches_on(device, [size], make_batch, memory_format)
        _, seconds = make_update(loaded, state, losses[number % len(losses)], batches, size, number)
        measured.append((peak_bytes(device), seconds))
    peaks, durations = zip(*measured[-len(losses) :], strict=True)
    return max(peaks), max(durations)


def make_update(
    loaded: Any, state: Any, loss: Any, batches: Iterable[tuple[Any, int]], samples: int, number: int
) -> tuple[float, float]:
    """Make update number `number`. Return its loss and its seconds, those to make its batches included."""
    from shoestring.recipe.losses import clip_norm
    from shoestring.training.data.seeding import derive, seed_all
    from shoestring.training.engine.update import update

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


def _batches_on(
    device: Any, sizes: Iterable[int], make_batch: Callable[[int], Any], memory_format: Any
) -> Iterator[tuple[Any, int]]:
    """Yield a batch of each size on the device, with its size; each is made only when it is needed."""
    from shoestring.training.data.batches import to_device

    for size in sizes:
        yield to_device(make_batch(size), device, memory_format), size


def _report_disk(report: Report, state: Any) -> int:
    """Report the bytes on disk of the state, which has its optimizer's states, and return those of a checkpoint."""
    from shoestring.training.oom import persistent_bytes

    sizes = persistent_bytes(state)
    files = sizes["buffers"] + SMALL_FILES
    full_bytes = sizes["gradients"] + sizes["optimizer states"] + files  # each trained weight has a gradient
    report({"stage": "disk", "full": full_bytes, "light": sizes["weights"] + files})
    return full_bytes


def _report_error(report: Report, size: int | None, error: Exception) -> None:
    failure = error if isinstance(error, ShoestringError) else describe(error)
    report(
        {
            "stage": "error",
            "micro_batch": size,
            "message": failure.message,
            "problems": list(failure.problems),
            "hint": failure.hint,
        }
    )


if __name__ == "__main__":
    try_sizes(read_request(), reporting())
