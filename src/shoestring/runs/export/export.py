"""Export of a saved model to a folder that other libraries load, with a model card."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base import config
from shoestring.base.display import Displayed
from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.base.failures import exits_as_errors
from shoestring.base.reading import read_blocks, real_path
from shoestring.base.units import MIB
from shoestring.recipe.exports import Exported, Format
from shoestring.recipe.options import LoadedRecipe, option_fields, own_fields
from shoestring.runs.export import folder as export_folder
from shoestring.runs.export import model_card, onnx
from shoestring.runs.model import Model, load_model
from shoestring.runs.run import Run
from shoestring.training.checkpoint.files import directory_bytes, json_text, write_file, write_text
from shoestring.training.checkpoint.folder import MANIFEST as FOLDER_MANIFEST
from shoestring.training.checkpoint.folder import verify_folder, write_folder
from shoestring.training.data.seeded import seeded_data
from shoestring.training.run_directory.contents import EXPORT, PREPROCESSING
from shoestring.version import __version__

if TYPE_CHECKING:
    from torch import nn

BATCH_SIZES = (1, 2, 3)
"""The numbers of samples on which an export is compared with the model: a graph may be wrong for all but one size."""
SAFETENSORS, ONNX = "safetensors", "onnx"
SMALL_BYTES, LARGE_BYTES = MIB, 64 * MIB
"""Bounds for what is written besides weights: a card and configurations; a graph (cloud's has 30 MB) or a tokenizer."""
WITH_PREPROCESSING = (SAFETENSORS, ONNX)
"""The formats that are the model alone; those of a recipe have its tokenizers and processors in their own form."""

_USAGE = """\
from safetensors.torch import load_file

weights = load_file("{file}")
print(len(weights), "tensors,", sum(weight.numel() for weight in weights.values()), "values")
"""


@dataclass(frozen=True, kw_only=True)
class Export(Displayed):
    """A folder that was exported."""

    format: str
    """The format of `--to`."""
    path: str
    """The folder that was written."""
    bytes: int
    """The bytes of its files."""
    files: list[str]
    """The names of its files."""
    max_difference: float
    """The largest absolute difference of an output from the model's; 0 for a copy of the weights."""
    recipe: str
    """The name of the recipe."""
    update: int | None
    """The update after which the weights were saved; None if it is not stored with them."""
    notes: tuple[str, ...] = ()
    """What the user should know, such as differences from the run."""


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A model in memory, and what is known about it and its data."""

    model: Model
    data: Mapping[str, Any]
    notes: tuple[str, ...]

    def samples(self) -> list[list[Any]]:
        """Return lists of `BATCH_SIZES` samples, spread over the first part that the model was not trained on."""
        from shoestring.training.data.seeding import derive, seed_host

        part = next(self.data[name] for name in ("validation", "test", "train") if len(self.data.get(name, ())))
        total = sum(BATCH_SIZES)
        indices = iter([number * len(part) // total for number in range(total)])
        seed_host(derive(self.model.run.loaded.seed, "export"))
        return [[part[index] for index in islice(indices, size)] for size in BATCH_SIZES]


def export(run: Run, *, to: str, out: Path | None = None, overwrite: bool = False) -> Export:
    """Implement `shoestring.export`. The run is opened for the CPU."""
    loaded, formats = run.loaded, _formats(run.loaded)
    if to not in formats:
        raise UsageError(f"{loaded.name} cannot be exported to {to}", hint=f"its formats are: {', '.join(formats)}")
    if to == ONNX:
        onnx.require_packages()
    folder = _choose_folder(run, to, out)
    export_folder.require_replaceable(folder, overwrite=overwrite)

    import torch

    from shoestring.training.engine.determinism import deterministic
    from shoestring.training.engine.memory import explaining_out_of_memory

    with deterministic(), exits_as_errors(), run.preprocessing() as notes, torch.no_grad():
        with explaining_out_of_memory("loading the data, data()"):
            data, data_notes = _load_data(loaded, is_needed=to != SAFETENSORS)
        with explaining_out_of_memory("loading the model and its weights"):
            model = load_model(run)
        opened = _Opened(
            model=model if formats[to].takes_adapters else _without_adaptations(model),
            data=data,
            notes=(*run.notes, *notes, *model.notes, *data_notes, *loaded.parts.data.notes()),
        )
        format_ = formats[to]
        sizes = {
            "the weights": _tensor_bytes(format_, opened.model.module),
            "the preprocessing": _preprocessing_bytes(run),
            "other files": SMALL_BYTES if to == SAFETENSORS else LARGE_BYTES,
        }
        export_folder.require_space(folder, sizes)
        with export_folder.writing(folder, overwrite=overwrite) as temporary, explaining_out_of_memory("exporting"):
            return _write(opened, to, format_, temporary, folder)


def _formats(loaded: LoadedRecipe) -> dict[str, Format]:
    parts = loaded.parts
    formats = {SAFETENSORS: Format(write=partial(_write_safetensors, loaded), takes_adapters=True), **parts.use.exports}
    if parts.use.onnx:
        formats[ONNX] = Format(write=partial(_write_onnx, loaded))
    return formats


def _choose_folder(run: Run, to: str, out: Path | None) -> Path:
    """Return the folder to write: by default `export/FORMAT` in the run's directory.

    Raises UsageError for weights without a run, and for another folder inside the run, whose names are its own.
    """
    directory = run.directory
    if out is None:
        if directory is None:
            raise UsageError("the weights belong to no run, so there is no default folder", hint="--out FOLDER")
        return directory.path / EXPORT.name / to
    folder = out.absolute()
    if directory and real_path(folder).is_relative_to(real_path(directory.path)):
        exports = real_path(directory.path / EXPORT.name)
        if exports not in real_path(folder).parents:
            raise UsageError(
                f"--out {out} is inside the run {directory.path.name}, whose files have their own places",
                hint=f"leave --out out, or use a folder elsewhere or below {directory.path / EXPORT.name}",
            )
    return folder


def _load_data(loaded: LoadedRecipe, *, is_needed: bool) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the parts of the data; none, and a note, if they cannot be read and are not needed."""
    try:
        return seeded_data(loaded), ()
    except ShoestringError as error:
        if not is_needed and loaded.parts.learning.learner is None:
            return {}, (f"the numbers of samples are not known, because the data could not be read: {error.message}",)
        if isinstance(error, UsageError) and loaded.parts.data.data is not None:
            hint = "the export is compared with the model on the data; if it has moved: --set data=PATH"
            raise type(error)(error.message, problems=error.problems, hint=hint) from error
        raise


def _without_adaptations(model: Model) -> Model:
    """Return the model with its adapters merged and its weights in fp32, as other libraries expect it."""
    adaptation, module = model.run.loaded.adaptation, model.module
    if adaptation.quantization != "none":
        raise UsageError(
            f"the weights of this run are stored in 4 bits (quantization={adaptation.quantization}), which this format "
            "does not have",
            hint=f"export the adapter: --to {SAFETENSORS}",
        )
    if adaptation.lora_r is not None:
        adapted: Any = module
        module = adapted.merge_and_unload()
    return replace(model, module=module if adaptation.weights == "fp32" else module.float())


def _tensor_bytes(format_: Format, model: "nn.Module") -> int:
    if format_.size:
        return format_.size(model)
    tensors = {tensor.data_ptr(): tensor for tensor in format_.tensors(model) if hasattr(tensor, "data_ptr")}
    return sum(tensor.nbytes for tensor in tensors.values())


def _preprocessing_bytes(run: Run) -> int:
    return directory_bytes(run.directory.preprocessing) if run.directory else 0


def _write(opened: _Opened, to: str, format_: Format, temporary: Path, folder: Path) -> Export:
    """Write the files, compare their outputs with the model's, and add the card and the manifest."""
    model, run, loaded = opened.model, opened.model.run, opened.model.run.loaded
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    exported = format_.write(model.module, temporary, opened.samples() if to != SAFETENSORS else [])
    difference = _largest_difference(to, exported)
    if to in WITH_PREPROCESSING:
        _copy_preprocessing(opened, temporary / PREPROCESSING.name)
    card = model_card.CardFacts(
        recipe=loaded.name,
        summary=" ".join(inspect.cleandoc(type(loaded.recipe).__doc__ or "").partition("\n\n")[0].split()),
        format=to,
        weights=model.describe_origin(),
        parameters=parameters,
        max_difference=difference if exported.compared else None,
        samples={part: len(dataset) for part, dataset in opened.data.items()},
        metrics=model.read_metrics(),
        options=_important_options(loaded),
        settings={name: value for name, value in run.settings.json().items() if value is not None},
        limits=[*opened.notes, "The weights were trained by this run alone; nobody else has verified them."],
        interface=exported.notes,
        usage=exported.usage,
        metadata=exported.metadata,
    )
    write_text(temporary / export_folder.CARD, model_card.render(card))
    facts = {
        "format": to,
        "recipe": loaded.name,
        "shoestring": __version__,
        "update": model.update,
        "max_difference": difference,
    }
    files, size = export_folder.write_manifest(temporary, facts)
    return Export(
        format=to,
        path=str(folder),
        bytes=size,
        files=files,
        max_difference=difference,
        recipe=loaded.name,
        update=model.update,
        notes=opened.notes,
    )


def _important_options(loaded: LoadedRecipe) -> dict[str, Any]:
    """Return the recipe's own options that have a value, and those of every recipe that differ from their default."""
    own = own_fields(loaded)
    return {
        name: value
        for name, value in _options(loaded).items()
        if value is not None and (name in own or value != option_fields(loaded)[name].default)
    }


def _options(loaded: LoadedRecipe) -> dict[str, Any]:
    """Return the options without the places of this machine: whoever publishes an export publishes them."""
    return {
        name: loaded.paths[name].name if name in loaded.paths else model_card.without_path(value)
        for name, value in config.as_json(loaded.options).items()
    }


def _write_onnx(loaded: LoadedRecipe, model: "nn.Module", folder: Path, samples: Sequence[Sequence[Any]]) -> Exported:
    from shoestring.training.data.batches import evaluation_collate_function

    assert loaded.parts.use.onnx
    return onnx.write(
        loaded.parts.use.onnx(model), folder, list(map(evaluation_collate_function(loaded.recipe), samples))
    )


def _write_safetensors(loaded: LoadedRecipe, model: "nn.Module", folder: Path, _samples: Sequence[Any]) -> Exported:
    """Write all weights, or the adapter alone, as the run stores weights to use; every byte is read back."""
    from shoestring.training.checkpoint.light import save_light

    path = save_light(folder, model, {"recipe": loaded.name})
    write_text(folder / "options.json", json_text(_options(loaded)))
    notes = ["`options.json` has the options of the recipe that made the model."]
    if path.name != "model.safetensors":
        notes.append("These are the weights of the adapter alone; it needs the base model that it was trained on.")
    return Exported(compared=[], usage=_USAGE.format(file=path.name), notes=notes)


def _largest_difference(to: str, exported: Exported) -> float:
    """Return the largest difference of an output from the model's.

    Raises RunError if it is beyond the tolerance, or if an output of either has numbers that are not finite.
    """
    largest = 0.0
    for expected, actual in exported.compared:
        expected, actual = expected.double(), actual.double()
        if expected.shape != actual.shape:
            raise RunError(f"an output of the export has the shape {tuple(actual.shape)}, not {tuple(expected.shape)}")
        if not expected.isfinite().all():
            raise RunError(
                f"the export to {to} cannot be compared with the model, whose outputs have numbers that are not finite",
                hint="look for the update after which the run's loss is not finite; export earlier weights",
            )
        difference, scale = float((expected - actual).abs().max()), float(expected.abs().max())
        if not difference <= exported.tolerance * scale:  # also if one is not a number
            raise RunError(
                f"the export to {to} differs from the model by {difference:.3g}, where the largest output is "
                f"{scale:.3g}; at most {exported.tolerance:.1g} of that is accepted",
                hint="nothing was written; export to safetensors instead",
            )
        largest = max(largest, difference)
    return largest


def _copy_preprocessing(opened: _Opened, folder: Path) -> None:
    """Copy what the run has stored for inference besides the weights, or let the recipe write it."""
    run, save = opened.model.run.directory, opened.model.run.loaded.parts.use.save_preprocessing
    if run and run.preprocessing.is_dir():
        verify_folder(run.preprocessing)
        # The run's own manifest names its options, and so the paths of its data; that of the copy names no run.
        write_folder(folder, partial(_copy_files, run.preprocessing))
    elif run and save and opened.data:
        write_folder(folder, save)


def _copy_files(source: Path, folder: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file() and path != source / FOLDER_MANIFEST:
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_file(copy, read_blocks(path, follow=False))
