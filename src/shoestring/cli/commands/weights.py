"""What saved weights are for: metrics, predictions, files for other libraries."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from shoestring import api
from shoestring.base import streams
from shoestring.base.errors import UsageError
from shoestring.base.units import parse_seconds
from shoestring.cli.config import Config
from shoestring.cli.options import (
    Json,
    OnHere,
    RecipeOfRun,
    Saved,
    Set,
    option_values,
    parse,
)
from shoestring.cli.output import print_answer, show_progress


def evaluate(
    directory: Saved,
    on: OnHere = "local",
    recipe: RecipeOfRun = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Give up after this time, e.g. 90s, 20m or 1.5h.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Evaluate on all data as one part.")] = False,
    first: Annotated[
        int | None, typer.Option(metavar="N", help="Evaluate only the first N samples of each part, such as one batch.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write target and prediction of each sample, as .jsonl or .csv."),
    ] = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Compute the metrics of saved weights on the run's data or on other data. The run is not changed."""
    from shoestring.answers.evaluated import document

    evaluated = api.evaluate(
        directory,
        recipe=recipe,
        on=on,
        limit_seconds=parse("--limit", limit, parse_seconds),
        whole=whole,
        first=first,
        out=out,
        **option_values(api.evaluate, set_, config_file),
    )
    print_answer(asdict(evaluated), as_json, lambda: document(evaluated))


def export(
    directory: Saved,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="safetensors, or one of the recipe's formats: onnx, huggingface, adapter, merged, gguf.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The folder to write; by default export/FORMAT in the run."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older export in the folder.")] = False,
    recipe: RecipeOfRun = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Write a run's model to a folder that other libraries load, with a model card.

    The outputs of the export are compared with those of the model.
    """
    from shoestring.answers.exported import document

    values = option_values(api.export, set_, config_file)
    with show_progress(f"exporting {directory} to {to}"):
        exported = api.export(directory, to=to, out=out, overwrite=overwrite, recipe=recipe, **values)
    print_answer(asdict(exported), as_json, lambda: document(exported))


def predict(
    directory: Saved,
    on: OnHere = "local",
    recipe: RecipeOfRun = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Pause after this time, e.g. 90s, 20m or 1.5h.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the rows to a .jsonl or .csv file, or with the recipe's files to a folder; repeat the command "
            "to complete it. By default JSON lines are printed.",
        ),
    ] = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON; needs --out.")] = False,
) -> None:
    """Predict for new inputs, without targets: a row for each, in their order. Set data to their file or folder.

    The status is 1 if an input cannot be used; all others are predicted. Without data, on a terminal, a language model
    answers what you type.
    """
    from shoestring.answers.predictions import document
    from shoestring.answers.renderers.terminal.document import lines

    if as_json and out is None:
        raise UsageError("--json prints the outcome, and without --out the rows are printed", hint="add --out PATH")
    values = option_values(api.predict, set_, config_file)
    is_conversation = "data" not in values and out is None and limit is None and streams.is_terminal()
    if is_conversation and api.converse(
        directory, recipe=recipe, on=on, input_stream=sys.stdin, output_stream=streams.answer_stream(), **values
    ):
        return
    predictions = api.predict(
        directory,
        recipe=recipe,
        on=on,
        limit_seconds=parse("--limit", limit, parse_seconds),
        out=out,
        **values,
    )
    streams.write_messages(*lines(document(predictions)))
    if as_json:
        print_answer(asdict(predictions), as_json, lambda: None)
    if predictions.errors and predictions.status == "finished":
        raise typer.Exit(1)
