"""Making a plan: the search for settings, then the costs, sessions, reasons and proposals of what it has chosen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from shoestring.base.garbage import collection_paused
from shoestring.base.packages.requirements import required
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Target
from shoestring.hardware.images import ImageAnswer, image_answer
from shoestring.hardware.prices import price
from shoestring.hardware.probe import platform_here
from shoestring.planning.advice import AdviceContext, advice
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.commands import plan_command
from shoestring.planning.costs import PlannedDisk, planned_disk, planned_host
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.evaluations import predict_evaluations
from shoestring.planning.gpus import divisor_reasons, layouts, search
from shoestring.planning.job import work_of
from shoestring.planning.light_weights import disk_reasons, fitting_files
from shoestring.planning.limits import Limit, binding, limits
from shoestring.planning.load import rows_per_shard
from shoestring.planning.memory_format import memory_format_reasons
from shoestring.planning.phases import Phase
from shoestring.planning.plan import Plan, Verdict
from shoestring.planning.proposals.choice import proposals
from shoestring.planning.proposals.disk import propose_smaller_files
from shoestring.planning.proposals.proposal import Proposal, smallest_change
from shoestring.planning.reasons import calibration_reason, changes, reasons
from shoestring.planning.schedule import make_schedule
from shoestring.planning.shares import samples_per_gpu
from shoestring.planning.streamed import streaming_notes
from shoestring.planning.times import planned_time
from shoestring.planning.trace import StoredTraces, Tracer
from shoestring.planning.trace.record import Facts
from shoestring.planning.untraced import hinting_at_training
from shoestring.planning.varying_lengths import choose_allocator
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.requirements import required_extras
from shoestring.recipe.whole_batch import require_whole_batch
from shoestring.techniques import fallbacks


def make_plan(
    loaded: LoadedRecipe,
    target: Target,
    requested: Settings,
    *,
    thorough: bool = False,
    usd_per_hour: float | None = None,
    calibration: Calibration | None = None,
    stored: StoredTraces | None = None,
) -> Plan:
    """Plan `loaded` for `target`; the settings that `requested` fixes stay fixed.

    A thorough plan also has phases and proposals: changes to the training result or to the requested settings, with
    their costs as far as computing them does not take longer than the plan. `usd_per_hour` is the price of one GPU and
    replaces the list price; `calibration` is the measurement of a run on the same device; `stored` has traces of a plan
    that was interrupted.

    Raises TraceError if a training step of the model cannot be traced, and UsageError if the data is invalid or the
    model does not support the requested settings.
    """
    loaded = with_weight_type(loaded, target, requested)
    with Tracer(loaded, stored) as tracer:
        return plan_with(
            tracer, loaded, target, requested, thorough=thorough, usd_per_hour=usd_per_hour, calibration=calibration
        )


def plan_with(
    tracer: Tracer,
    loaded: LoadedRecipe,
    target: Target,
    requested: Settings,
    *,
    thorough: bool,
    usd_per_hour: float | None,
    calibration: Calibration | None,
) -> Plan:
    """Do what `make_plan` does, with a tracer of `loaded` that can be shared by targets: starting one takes seconds."""
    started = monotonic()
    require_whole_batch(loaded, requested)
    layouts(loaded, target, requested)  # before the data are read
    with (
        collection_paused(),
        hinting_at_training(loaded),
        Candidates(tracer, loaded, target, calibration) as candidates,
    ):
        facts = tracer.facts
        ranked, allocator_reasons = choose_allocator(tracer, loaded, target, search(candidates, requested), requested)
        counts = Counts.from_recipe(loaded, facts.samples)
        disk_of = partial(
            planned_disk, target=target, adapters=bool(loaded.options.get("lora_r")), epochs=counts.epochs
        )
        files = fitting_files(ranked[0], disk_of)
        ranked = [replace(item, settings=item.settings.replace(**files)) for item in ranked]
        chosen = ranked[0]
        evaluations = predict_evaluations(tracer, loaded, target, chosen, counts)
        time = planned_time(
            chosen,
            counts,
            host_work={
                name: seconds * samples_per_gpu(loaded.effective_batch, chosen.settings)
                for name, seconds in tracer.host_work.items()
            },
            evaluations=evaluations,
        )
        disk, host = disk_of(chosen), planned_host(chosen, target)
        work = (
            work_of(
                time,
                evaluations,
                loaded=loaded,
                target=target,
                chosen=chosen,
                disk=disk,
                opening_seconds=tracer.opening_seconds,
                planning_seconds=max(tracer.opening_seconds, monotonic() - started),
            )
            if chosen.time
            else None
        )
        bounds = limits(chosen.memory, disk, host, target, work, counts)
        fits = all(limit.holds for limit in bounds)
        proposed = proposals(candidates, chosen, requested, fits=chosen.fits, facts=facts) if thorough else []
        proposed += propose_smaller_files(chosen, lambda candidate: disk_of(candidate).peak_bytes, disk.limit_bytes)
    planned_facts = facts.with_bounds(chosen.trace.bounds)
    schedule = make_schedule(
        loaded,
        requested,
        target,
        counts=counts,
        work=work,
        with_commands=thorough and fits,
        update_seconds=chosen.time.value if chosen.time else None,
        proposed=proposed,
    )
    return Plan(
        verdict=_verdict(bounds, proposed),
        target=target,
        recipe=loaded.name,
        options=loaded.options,
        settings=chosen.settings,
        facts=replace(planned_facts, notes=(*streaming_notes(ranked, target), *planned_facts.notes)),
        memory=chosen.memory,
        time=time,
        sessions=schedule.sessions,
        weeks=schedule.weeks,
        counts=counts,
        work=work,
        disk=disk,
        host=host,
        image=_image(loaded, target),
        limits=tuple(bounds),
        binding=binding(bounds),
        changes=tuple(changes(bounds, proposed, target)),
        fallbacks=tuple(
            fallbacks.descriptions(chosen.settings, _fallback_limits(loaded, chosen, facts, target, disk_of))
        ),
        reasons=(
            *reasons(ranked, loaded, target, requested, facts, bounds),
            *allocator_reasons,
            *disk_reasons(chosen, requested, disk_of),
            *divisor_reasons(candidates),
            *memory_format_reasons(ranked, requested, candidates.channels_last_error),
            *calibration_reason(calibration, target),
        ),
        advice=tuple(advice(AdviceContext(chosen=chosen, requested=requested, loaded=loaded, target=target))),
        proposals=tuple(proposed),
        answers=schedule.answers,
        phases=schedule.phases,
        price=price(target, usd_per_hour),
        alternatives=tuple(alternative_json(candidate) for candidate in _alternatives(ranked[1:])),
        next_command=_next_command(loaded, requested, target, bounds, proposed, schedule.phases),
    )


def _image(loaded: LoadedRecipe, target: Target) -> ImageAnswer | None:
    platform = target.platform
    if platform is None or platform.name == platform_here().name:
        return None
    return image_answer(platform.name, required(required_extras(loaded)))


def _fallback_limits(
    loaded: LoadedRecipe, chosen: Candidate, facts: Facts, target: Target, disk_of: Callable[[Candidate], PlannedDisk]
) -> fallbacks.Limits:
    settings = chosen.settings
    least = fallbacks.least_micro_batch(
        batch_norm=facts.batch_norm, whole_batch=settings.micro_batch if loaded.parts.learning.whole_batch else None
    )
    # By default torch's optimizers process many tensors at once on a GPU and one tensor at a time on a CPU.
    batched_by_default = settings.optimizer_kernel is None and target.device.kind == "cuda"
    return fallbacks.Limits(
        least_micro_batch=least,
        blocks=facts.blocks,
        # A library's trainer has its own optimizer.
        batched_step=loaded.parts.learning.trainer is None
        and (batched_by_default or settings.optimizer_kernel in ("foreach", "fused")),
        streamable=_streamable(chosen, lambda item: planned_host(item, target).fits and disk_of(item).fits),
        # That of the smallest microbatches, which come before smaller groups.
        sharing=-(-rows_per_shard(loaded, facts, settings) // least) if settings.stream_order == "block" else 0,
    )


def _streamable(chosen: Candidate, fits: Callable[[Candidate], bool]) -> int:
    """Return how many blocks can be streamed from where the host, or its disk, has room for them."""
    least, blocks = chosen.settings.streamed_blocks or 0, sum(map(bool, chosen.trace.bytes_of_all_blocks))
    counts = range(blocks, least, -1) if least else ()
    further = (
        count for count in counts if fits(replace(chosen, settings=chosen.settings.replace(streamed_blocks=count)))
    )
    return next(further, least)


def _next_command(
    loaded: LoadedRecipe,
    requested: Settings,
    target: Target,
    bounds: Sequence[Limit],
    proposed: Sequence[Proposal],
    phases_to_run: Sequence[Phase],
) -> str:
    """Return the command to continue with: the full run, or a plan with the smallest change for each limit."""
    exceeded = [limit for limit in bounds if not limit.holds]
    if not exceeded:
        return phases_to_run[-1].command if phases_to_run else ""
    values: dict[str, Any] = {}
    for limit in exceeded:
        change = smallest_change(proposed, limit.kind)
        if change is None:
            return ""
        values |= change.values
    return plan_command(loaded, requested, target, values)


def _verdict(bounds: Sequence[Limit], proposed: Sequence[Proposal]) -> Verdict:
    """Return the verdict; "fits with changes" means changes of options and settings, not of the target."""
    exceeded = [limit for limit in bounds if not limit.holds]
    if not exceeded:
        return "fits"
    return "fits with changes" if all(smallest_change(proposed, limit.kind) for limit in exceeded) else "does not fit"


def _alternatives(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the best of each group of candidates that differ only in their microbatch."""
    best: dict[Settings, Candidate] = {}
    for candidate in candidates:
        best.setdefault(candidate.settings.replace(micro_batch=None), candidate)
    return list(best.values())


def alternative_json(candidate: Candidate) -> dict[str, Any]:
    """Return the settings and the costs of a candidate as JSON.

    Keys:
        settings (object): the settings, as in [Settings](settings.md)
        update_seconds (number or null): the predicted seconds of an update
    """
    return {
        "settings": candidate.settings.json(),
        "fits": candidate.memory.fits,
        "peak_bytes": candidate.memory.peak_bytes,
        "high_bytes": candidate.memory.high_bytes,
        "update_seconds": candidate.time.value if candidate.time else None,
    }
