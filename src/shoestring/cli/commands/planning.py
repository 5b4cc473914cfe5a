"""What will happen: the memory of given settings, and plans."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from shoestring import api
from shoestring.base.units import parse_bytes, parse_seconds, parse_until
from shoestring.cli import completion
from shoestring.cli.config import Config
from shoestring.cli.options import Json, On, Probe, Purpose, Recipe, Set, option_values, parse
from shoestring.cli.output import print_answer, show_progress


def estimate(
    recipe: Recipe, on: On = "local", set_: Set = None, config_file: Config = None, as_json: Json = False
) -> None:
    """Estimate the memory of given settings, part by part, without a GPU."""
    from shoestring.answers.estimate import document

    with show_progress(f"tracing one training step of {recipe} for {on}"):
        estimate = api.estimate(recipe, on, **option_values(api.estimate, set_, config_file))
    print_answer(estimate.json(), as_json, lambda: document(estimate))


def plan(
    recipe: Recipe,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="TARGET",
            help="The machine, by default local; repeat it to compare several, or kaggle for all that Kaggle has. "
            "`shoestring targets` lists them, and says how several cards and other GPUs are called.",
            autocompletion=completion.target_or_platform,
        ),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The length of a session, such as 90s, 20m or 9h.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The disk space for the run's directory, such as 15GB.")
    ] = None,
    ram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The memory of the machine itself, such as 16GB.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="The price of one GPU for an hour, instead of the list price."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A run on the same GPU, whose measured times scale the predictions, or a file of check --measure.",
            autocompletion=completion.run_directory,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Find the cheapest target that is done by then: sunday, 2026-12-01, 3d or 40h.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print everything: reasons, alternatives, proposals, phases.")
    ] = False,
    purpose: Annotated[
        Purpose, typer.Option("--for", help="What to plan: training, or predictions with a trained model.")
    ] = Purpose.TRAIN,
    probe: Probe = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Predict whether a run fits, choose its settings, and predict its time, sessions and cost, without a GPU."""
    from shoestring.answers import comparison as compared
    from shoestring.answers import plan as planned

    names = on or (api.priced_targets() if by else ["local"])
    if purpose is Purpose.PREDICT:
        _plan_inference(recipe, names, option_values(api.plan_inference, set_, config_file), as_json)
        return
    limit_seconds, disk_bytes = parse("--limit", limit, parse_seconds), parse("--disk", disk, parse_bytes)
    by_seconds = parse("--by", by, lambda text: parse_until(text, datetime.now().astimezone()))
    with show_progress(f"planning {recipe} for {', '.join(names)}"):
        comparison = api.compare(
            recipe,
            names,
            limit_seconds=limit_seconds,
            disk_bytes=disk_bytes,
            ram_bytes=parse("--ram", ram, parse_bytes),
            usd_per_hour=price,
            calibrate=calibrate,
            by_seconds=by_seconds,
            probe=probe,
            **option_values(api.compare, set_, config_file),
        )
    if len(names) > 1 or by or comparison.platform:
        print_answer(comparison.json(), as_json, lambda: compared.document(comparison))
    else:
        plan = comparison.plans[0]
        print_answer(plan.json(), as_json, lambda: planned.document(plan) if full else planned.summary(plan))


def _plan_inference(recipe: str, names: list[str], values: dict[str, Any], as_json: bool) -> None:
    from shoestring.answers.inference import document

    with show_progress(f"planning predictions of {recipe} for {', '.join(names)}"):
        plans = [api.plan_inference(recipe, name, **values) for name in api.target_names(names)]
    facts = [plan.json() for plan in plans]
    print_answer(facts if len(plans) > 1 else facts[0], as_json, lambda: [document(plan) for plan in plans])
