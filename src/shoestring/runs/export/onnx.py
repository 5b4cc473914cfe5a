"""ONNX graphs by torch's own exporter, compared with the model by onnxruntime."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import RunError
from shoestring.base.packages.requirements import require
from shoestring.recipe.exports import Axes, Exported, OnnxGraph
from shoestring.training.checkpoint.files import json_text, write_text

if TYPE_CHECKING:
    from torch import Tensor

MODEL, FACTS = "model.onnx", "graph.json"
_STACK_TRACE = "pkg.torch.onnx.stack_trace"
_USAGE = """\
import numpy
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
inputs = {{
{inputs}
}}
outputs = session.run(None, inputs)
print({{output.name: value.shape for output, value in zip(session.get_outputs(), outputs)}})
"""


def require_packages() -> None:
    """Raise UsageError naming the extra if one of its packages is missing."""
    require("export", "onnx", "onnxscript", "onnxruntime")


def write(graph: OnnxGraph, folder: Path, batches: Sequence[Any]) -> Exported:
    """Write the graph to the folder and compute its outputs for the batches.

    Raises RunError if torch cannot export the module.
    """
    import onnxruntime

    examples = [tuple(graph.read(batch)) for batch in batches]
    _export(graph, examples[-1], folder / MODEL)
    if graph.facts:
        write_text(folder / FACTS, json_text(dict(graph.facts)))
    session = onnxruntime.InferenceSession(str(folder / MODEL), providers=["CPUExecutionProvider"])
    compared = [
        pair
        for batch, inputs in zip(batches, examples, strict=True)
        for pair in zip(graph.compute(batch), _run(session, graph, inputs), strict=True)
    ]
    return Exported(
        compared=compared,
        usage=_usage(graph, examples[0]),
        metadata={"library_name": "onnx"},
        notes=[*graph.notes, f"Sizes that may vary: {_axes_text({**graph.inputs, **graph.outputs})}."],
    )


def _export(graph: OnnxGraph, example: "tuple[Tensor, ...]", path: Path) -> None:
    import torch

    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in graph.inputs.values())
    try:
        with _quiet():
            # Not left to torch.onnx: after a failure it tries other ways, whose graphs may be wrong for other sizes.
            exported_program = torch.export.export(
                graph.module.eval(),
                example,
                dynamic_shapes=(shapes,) if _takes_a_list(graph) else shapes,
                strict=False,
            )
            program: Any = torch.onnx.export(
                exported_program,
                dynamo=True,
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                # onnxruntime optimizes a graph when it loads it; to do it here took three minutes for a large one.
                optimize=False,
                verbose=False,
            )
            _name_axes(program.model, graph)
            _remove_stack_traces(program.model)
            program.save(str(path))
    except Exception as error:
        raise RunError(
            f"torch cannot export the model as an ONNX graph: {_first_line(error)}",
            hint="the forward of the module has to be a function of tensors, for any size of the named dimensions; "
            "export to safetensors instead",
        ) from error


def _takes_a_list(graph: OnnxGraph) -> bool:
    """Return whether the forward has one parameter `*tensors`, for whose shapes torch expects one tuple."""
    import inspect

    kinds = [parameter.kind for parameter in inspect.signature(graph.module.forward).parameters.values()]
    return kinds == [inspect.Parameter.VAR_POSITIONAL]


def _name_axes(model: Any, graph: OnnxGraph) -> None:
    """Name the dimensions that may vary, for which the exporter writes expressions or the size of the example.

    onnxruntime infers the shapes between inputs and outputs by itself.
    """
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    for values, named in ((model.graph.inputs, graph.inputs), (model.graph.outputs, graph.outputs)):
        for value, axes in zip(values, named.values(), strict=True):
            sizes = list(value.shape)
            for index, name in axes.items():
                sizes[index] = name
            value.shape = type(value.shape)(sizes)


def _remove_stack_traces(model: Any) -> None:
    """Remove the lines of Python that each operation is of: they have the paths of this machine's files."""
    for graph in (model.graph, *model.functions.values()):
        for node in graph:
            node.metadata_props.pop(_STACK_TRACE, None)


def _run(session: Any, graph: OnnxGraph, inputs: "Sequence[Tensor]") -> "list[Tensor]":
    import torch

    feed = {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)}
    # The exporter leaves out an input on which nothing depends.
    names = {value.name for value in session.get_inputs()}
    outputs = session.run(None, {name: value for name, value in feed.items() if name in names})
    return [torch.from_numpy(value) for value in outputs]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's remarks on itself: missing torchvision, deprecated names, axes with the same name."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _usage(graph: OnnxGraph, example: "Sequence[Tensor]") -> str:
    lines = [
        f'    "{name}": numpy.ones({tuple(tensor.shape)}, "{str(tensor.dtype).removeprefix("torch.")}"),'
        for name, tensor in zip(graph.inputs, example, strict=True)
    ]
    return _USAGE.format(inputs="\n".join(lines))


def _axes_text(named: Mapping[str, Axes]) -> str:
    return "; ".join(
        f"`{name}` {', '.join(f'dimension {index} ({size})' for index, size in axes.items())}"
        for name, axes in named.items()
        if axes
    )


def _first_line(error: BaseException) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:  # the exporter wraps the cause in a report of many lines
        cause = cause.__cause__
    return next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)[:300]
