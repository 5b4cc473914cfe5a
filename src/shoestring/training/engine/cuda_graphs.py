"""Microbatches as CUDA graphs: the kernels that Python launches one by one are captured once and replayed in one
launch.

Small models wait for Python rather than for the GPU. A graph has the same kernels in the same order with the same
arguments, so the bits are equal; random numbers continue from the generator's seed as they would without a graph. What
the forward decides in Python is fixed by the capture: so each shape and each stage has a graph of its own, and a model
that draws random numbers on the host, or replaces its tensors by others, is rejected.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.techniques import nested
from shoestring.training.data.own_generators import AllStates, OwnGenerators
from shoestring.training.engine import foreach
from shoestring.training.engine.memory import error_message, out_of_memory
from shoestring.training.engine.model_tensors import ModelTensors
from shoestring.training.engine.update import Microbatch, Weight, Work

MAX_GRAPHS = 16
"""Each graph has gradients and inputs of its own. Further shapes run without graphs."""

Capture = Callable[[Callable[[], Any]], tuple[Any, Callable[[], None]]]
"""Captures a function. Returns its result, whose memory each replay overwrites, and the replay."""


def build_cuda_graphs(model: nn.Module, settings: Settings, device: torch.device) -> CudaGraphs | None:
    """Return the graphs of `model`; None if the settings do not use CUDA graphs.

    Raises UsageError on a machine without a GPU.
    """
    if not settings.cuda_graphs:
        return None
    if device.type != "cuda":
        raise UsageError(
            "compile=graphs: CUDA graphs need a GPU, and this machine has none", hint="set compile=yes instead"
        )
    return CudaGraphs(model)


class CudaGraphs:
    """The `run` argument of `update` for one model. The first microbatch of each kind runs without a graph, which also
    initializes libraries that cannot be initialized within a capture; the following ones run as a graph.
    """

    def __init__(self, model: nn.Module, new_capture: Callable[[], Capture] | None = None) -> None:
        """`new_capture` returns a `Capture` with a memory pool of its own, by default that of CUDA graphs."""
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._new_capture = new_capture or cuda_capture
        self._capture = self._new_capture()
        self._observed_kinds: set[Hashable] = set()
        self._graphs: dict[Hashable, _Graph] = {}

    def __call__(self, work: Work, batch: Any, expected: Weight | None, key: Hashable) -> Microbatch:
        """Run `work(batch, expected)` and return its result.

        Raises RunError if it cannot be captured, UsageError if replaying a graph would give another result.
        """
        tensors, structure = nested.flatten((batch, expected))
        kind = (key, structure, *map(_layout, tensors))

        def work_on(tensors: list[Tensor]) -> Microbatch:
            remaining = iter(tensors)
            return work(*nested.replaced((batch, expected), lambda _: next(remaining), lambda value: value))

        try:
            if kind in self._graphs and not self._graphs[kind].is_current():
                # Something between updates, such as an evaluation, has replaced a tensor: begin as with a new model.
                self.release()
                self._observed_kinds.clear()
            if kind not in self._observed_kinds:
                before = ModelTensors(self._model)
                result = _without_host_draws(partial(work, batch, expected))
                # A forward may set what was not set before, such as a table that it computes once.
                _require_same(self._model, before.others_in(ModelTensors(self._model)))
                self._observed_kinds.add(kind)
                return result
            if kind not in self._graphs:
                if len(self._graphs) == MAX_GRAPHS:
                    return work(batch, expected)
                self._graphs[kind] = _Graph(work_on, tensors, self._model, self._parameters, self._capture)
            return self._graphs[kind].replay(tensors)
        except BaseException:
            # Most likely out of memory, and smaller microbatches are of another kind.
            self.release()
            raise

    def release(self) -> None:
        """Free the memory of every graph."""
        self._graphs.clear()
        # torch ends a memory pool with its last graph, and a capture in a pool that has ended fails.
        self._capture = self._new_capture()


class _Graph:
    """One microbatch's work, with inputs, gradients and results at fixed addresses."""

    def __init__(
        self,
        work: Callable[[list[Tensor]], Microbatch],
        inputs: list[Tensor],
        model: nn.Module,
        parameters: list[nn.Parameter],
        capture: Capture,
    ) -> None:
        before = ModelTensors(model)
        self._inputs, self._parameters = [tensor.clone() for tensor in inputs], parameters
        previous_gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            # Without a gradient, backward allocates gradients that belong to the graph.
            parameter.grad = None
        try:
            self._result, self._replay = capture(lambda: work(self._inputs))
            self._gradients = [parameter.grad for parameter in parameters]
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise RunError(
                f"compile=graphs: the work of a microbatch cannot be captured: {error_message(error)}",
                problems=["the model or its loss may wait for a value from the GPU, as .item() or a mask does"],
                hint="set compile=no; to continue a run that has started, add --allow-inexact",
            ) from error
        finally:
            for parameter, gradient in zip(parameters, previous_gradients, strict=True):
                parameter.grad = gradient
        self._tensors = ModelTensors(model)
        _require_same(model, [*before.others_in(self._tensors), *self._tensors.others_in(before)])
        self._written = before.written()

    def is_current(self) -> bool:
        """Return whether the model still has the tensors whose addresses the graph has recorded."""
        return self._tensors.are_current()

    def replay(self, inputs: list[Tensor]) -> Microbatch:
        """Replay the graph with other inputs and add its gradients to those of the parameters."""
        if inputs:
            foreach.copy(self._inputs, inputs)
        self._replay()
        for tensor in self._written:
            # torch counts writes when an operator is called, not when a graph makes them; `ShardBuffers` and
            # `BufferBackup` compare the counts.
            torch.autograd.graph.increment_version(tensor)
        self._add_gradients()
        result = self._result
        loss_sum, weight = _clone(result.loss_sum), _clone(result.weight)
        return Microbatch(loss_sum, weight, weight if result.expected is result.weight else _clone(result.expected))

    def _add_gradients(self) -> None:
        """Add the gradients of the last replay. Nothing that lives on refers to the graph's own tensors: the next
        replay of any graph of the memory pool may overwrite them.
        """
        computed = [
            (parameter, gradient)
            for parameter, gradient in zip(self._parameters, self._gradients, strict=True)
            if gradient is not None
        ]
        first = [(parameter, gradient) for parameter, gradient in computed if parameter.grad is None]
        further = [(total, gradient) for parameter, gradient in computed if (total := parameter.grad) is not None]
        if first:
            copies = [torch.empty_like(gradient) for _, gradient in first]
            foreach.copy(copies, [gradient for _, gradient in first])
            for (parameter, _), copy in zip(first, copies, strict=True):
                parameter.grad = copy
        if further:
            foreach.add([total for total, _ in further], [gradient for _, gradient in further])


def cuda_capture() -> Capture:
    """Return a function that captures CUDA graphs, all in one new memory pool: they never run at the same time.

    So the temporary memory of one graph may be the results of another. A replay's results are copied before the next.
    After a failure another pool is needed.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        # torch leaves the stream of the capture current if the capture fails to begin or to end.
        with torch.cuda.stream(torch.cuda.current_stream()):
            try:
                # Other threads save and prefetch meanwhile: their calls neither belong to the graph nor are errors.
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    result = work()
            except BaseException:
                _let_be_destroyed(graph)
                _end_failed_capture(pool)
                raise
        return result, graph.replay

    return capture


def _let_be_destroyed(graph: torch.cuda.CUDAGraph) -> None:
    """Prevent torch from ending the process when it destroys a graph whose capture has failed to begin.

    A capture begins with the registration of the graph in the random generator. If that runs out of memory, the graph
    refers to a generator that does not know it, which its destructor cannot report
    (`CUDAGeneratorState::register_graph` and `unregister_graph` in torch 2.10 to 2.13). It is registered again, or
    without memory for that, never destroyed.
    """
    try:
        graph.register_generator_state(torch.cuda.default_generators[torch.cuda.current_device()])
    except RuntimeError:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))


def _end_failed_capture(pool: Any) -> None:
    """End what torch leaves begun if the capture itself fails to begin or to end: otherwise the random generator would
    refuse to draw, and the allocator would never free memory that several streams have used.

    torch has no public function for the allocator's part. The private ones have these names in 2.10 to 2.13.
    """
    device = torch.cuda.current_device()
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())
    with contextlib.suppress(AttributeError, RuntimeError):  # in most cases torch has ended it itself
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


def _require_same(model: nn.Module, replaced: Iterable[str]) -> None:
    """Raise UsageError if the forward has `replaced` tensors with these names: a graph has their old addresses."""
    names = [*dict.fromkeys(replaced)]
    if names:
        count = f" (and {len(names) - 1} others)" if len(names) > 1 else ""
        raise UsageError(
            f"compile=graphs: the forward of {type(model).__name__} replaces the tensor {names[0]}{count}, and a graph "
            "would always use the same one",
            hint="write into it in place (copy_), or set compile=no",
        )


def _without_host_draws(work: Callable[[], Microbatch]) -> Microbatch:
    """Return the result of `work`. Raises UsageError if it drew random numbers on the host, which a graph would not."""
    states = AllStates(OwnGenerators(work=work))
    result = work()
    if not states.unchanged():
        raise UsageError(
            "compile=graphs: the model draws random numbers on the host, and a graph would repeat the same ones",
            hint="set compile=no",
        )
    return result


def _clone(value: Any) -> Any:
    """Return a copy of a tensor that the graph has written, since the next replay overwrites it."""
    return value.clone() if isinstance(value, Tensor) else value


def _layout(tensor: Tensor) -> Hashable:
    """Return what must be equal to reuse a graph with another tensor."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
