"""Microbatches as CUDA graphs: what Python asked a GPU for once, one kernel after another, is asked for again at once.

Small models wait for Python and not for the GPU. A graph has the kernels, in the order and with the arguments they had,
so bits are the same; random numbers go on from the generator's seed as they would have gone. What the forward decided
in Python is decided for good: so there is a graph for each shape and each stage, and a model that draws random numbers
on the host is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.data.generators import Generators
from shoestring.engine.memory import error_message, out_of_memory
from shoestring.engine.update import Microbatch, Weight, Work
from shoestring.errors import RunError, UsageError
from shoestring.settings import Settings
from shoestring.techniques import trees

GRAPHS = 16
"""At most, since each keeps gradients and inputs of its own. Other shapes run as they would without graphs."""

Recorder = Callable[[Callable[[], Any]], tuple[Any, Callable[[], None]]]
"""Makes what a function does repeatable: what it returned, in memory that each replay writes anew, and the replay."""


def of(model: nn.Module, settings: Settings, device: torch.device) -> CudaGraphs | None:
    """As the settings say; None where nothing is to be captured.

    Raises UsageError for a machine without a GPU.
    """
    if not settings.cuda_graphs:
        return None
    if device.type != "cuda":
        raise UsageError("compile=graphs: CUDA graphs need a GPU, and there is none here", hint="compile=yes")
    return CudaGraphs(model)


class CudaGraphs:
    """An update's `run` for one model: from the second microbatch of its kind on as a graph. The first is run plainly,
    which also starts the libraries that cannot be started within a capture.
    """

    def __init__(self, model: nn.Module, record: Recorder | None = None) -> None:
        """`record` is what captures; by default a CUDA graph."""
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._record = record or cuda_recorder()
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, _Graph] = {}

    def __call__(self, work: Work, batch: Any, expected: Weight | None, key: Hashable) -> Microbatch:
        """What `work(batch, expected)` does and returns.

        Raises RunError where it cannot be captured, UsageError where a graph would not do the same again.
        """
        leaves, structure = trees.flatten((batch, expected))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        # As text: not every torch can hash a structure.
        kind = (key, str(structure), *map(_kind, leaves))

        def with_these(tensors: list[Tensor]) -> Microbatch:
            given = iter(tensors)
            taken = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return work(*trees.unflatten(taken, structure))

        try:
            if kind not in self._seen:
                found = _without_host_draws(lambda: work(batch, expected))
                self._seen.add(kind)
                return found
            if kind not in self._graphs:
                if len(self._graphs) == GRAPHS:
                    return work(batch, expected)
                self._graphs[kind] = _Graph(with_these, tensors, self._parameters, self._record)
            return self._graphs[kind].replay(tensors, first=expected is None)
        except (RuntimeError, MemoryError):
            # Memory ran out, most likely, and smaller microbatches are of another kind.
            self.forget()
            raise

    def forget(self) -> None:
        """Give back the memory of every graph."""
        self._graphs.clear()


class _Graph:
    """One microbatch's work on inputs, gradients and results that stay where they are."""

    def __init__(
        self,
        work: Callable[[list[Tensor]], Microbatch],
        inputs: list[Tensor],
        parameters: list[nn.Parameter],
        record: Recorder,
    ) -> None:
        self._inputs, self._parameters = [tensor.clone() for tensor in inputs], parameters
        held = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            # So that backward makes gradients of the graph's own.
            parameter.grad = None
        try:
            self._result, self._replay = record(lambda: work(self._inputs))
            self._gradients = [parameter.grad for parameter in parameters]
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise RunError(
                f"compile=graphs: the work of a microbatch cannot be captured: {error_message(error)}",
                problems=["the model or its loss may wait for a number from the GPU, as .item() or a mask does"],
                hint="compile=no; with --allow-inexact a run that has begun goes on so",
            ) from error
        finally:
            for parameter, before in zip(parameters, held, strict=True):
                parameter.grad = before

    def replay(self, inputs: list[Tensor], *, first: bool) -> Microbatch:
        """Do it with other inputs. An update begins with one graph and repeats others, so gradients of the `first` are
        the graph's own until they are cleared, and what comes later is added to them."""
        if inputs:
            torch._foreach_copy_(self._inputs, inputs)
        self._replay()
        for parameter, found in zip(self._parameters, self._gradients, strict=True):
            if found is None:
                continue
            if parameter.grad is not None:
                parameter.grad += found
            else:
                parameter.grad = found if first else found.clone()
        result = self._result
        loss_sum, weight = _own(result.loss_sum), _own(result.weight)
        return Microbatch(loss_sum, weight, weight if result.expected is result.weight else _own(result.expected))


def cuda_recorder() -> Recorder:
    """Captures CUDA graphs, all in one pool of memory: they run one after the other."""
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        # Other threads save and fetch meanwhile: what they ask CUDA for is no part of the graph and no error.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = work()
        return found, graph.replay

    return record


def _without_host_draws(work: Callable[[], Microbatch]) -> Microbatch:
    """What `work` gives. Raises UsageError where it drew random numbers that a graph would not draw again."""
    before = Generators()
    found = work()
    if not before.untouched():
        raise UsageError(
            "compile=graphs: the model draws random numbers on the host, which a graph would repeat",
            hint="compile=no",
        )
    return found


def _own(value: Any) -> Any:
    """The value a graph has written, where its next replay does not write."""
    return value.clone() if isinstance(value, Tensor) else value


def _kind(leaf: Any) -> Hashable:
    """What must be the same for a graph to serve again: of a tensor its shape, of anything else the value."""
    return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else (leaf,)
