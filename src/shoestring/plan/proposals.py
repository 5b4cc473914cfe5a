"""What a plan never does by itself, priced: it changes what is learnt, or leaves what was asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoestring.config import as_json
from shoestring.errors import TraceError, UsageError
from shoestring.hardware.catalog import DEVICES, Target
from shoestring.plan.candidates import Candidate, Candidates
from shoestring.plan.search import consider, fastest
from shoestring.recipe.options import Adaptation, LoadedRecipe, option_fields
from shoestring.settings import Settings
from shoestring.trace.record import Facts, Trace
from shoestring.units import bytes_text

SMALLER: Mapping[str, str] = {
    "completion_len": "shorter completions",
    "seq_len": "shorter sequences",
    "a_len": "shorter texts to learn",
    "prompt_len": "shorter prompts",
    "q_len": "shorter questions",
    "crop": "smaller crops",
    "pixels": "smaller images",
    "generations": "fewer generations",
    "written_at_once": "completions written in smaller groups: other random draws, beside that no more than rounding",
    "beams": "fewer beams",
    "loss_chunk": "the loss in smaller pieces, which changes no more than rounding",
}
"""Options that recipes call so, and what less of them is."""

ADAPTED: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"optimizer_states": "8bit"}, "optimizer states in 8 bits"),
    ({"lora_r": 8}, "LoRA adapters on frozen weights"),
    ({"lora_r": 8, "quantization": "nf4"}, "LoRA adapters beside weights in 4 bits"),
)
"""Options of any recipe (`options.Adaptation`) that save memory."""

_CHOSEN = ("micro_batch", "precision", "checkpointing", "optimizer_kernel")
"""Settings that a plan chooses where they are left open."""

_PARTS = 8
"""The smaller values of an option are eighths of it."""

BUDGET = 60_000
"""Events of traces that proposals may cost beside a plan that fits: some five seconds."""
BUDGET_WITHOUT_A_PLAN = 1_000_000
"""The same where nothing fits, and the answer is what would."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, what it is, and what it would cost; None for what was not followed or cannot be told."""

    name: str
    values: Mapping[str, Any]
    """As `--set` takes them; empty for a change of the target."""
    changes_learning: bool
    trains: bool = True
    """Whether the engine can run it."""
    fits: bool | None = None
    peak_bytes: int | None = None
    high_bytes: int | None = None
    update_seconds: float | None = None
    note: str = ""
    limit: Literal["memory", "disk"] = "memory"
    """What `fits` is about."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those it was priced with."""

    def json(self) -> dict[str, Any]:
        return {**vars(self), "values": as_json(self.values), "settings": dict(self.settings)}

    @property
    def command(self) -> str:
        """What to add to a command line."""
        return " ".join(f"--set {name}={value}" for name, value in as_json(self.values).items())


class _Budget:
    """What is left to be spent on traces, in events: the same for the same question, unlike seconds."""

    def __init__(self, *, events: int, events_of_a_trace: int) -> None:
        self._left, self._events_of_a_trace = events, events_of_a_trace

    def allows_a_trace(self) -> bool:
        return self._left >= self._events_of_a_trace

    def spend(self, trace: Trace) -> None:
        self._left -= len(trace.events)


def proposals(
    candidates: Candidates, chosen: Candidate, wanted: Settings, *, fits: bool, facts: Facts
) -> list[Proposal]:
    """Everything known to help, priced as far as that takes no longer than the plan itself.

    Where the plan does not fit, of each option the largest value that does.
    """
    budget = _Budget(events=BUDGET if fits else BUDGET_WITHOUT_A_PLAN, events_of_a_trace=len(chosen.trace.events))
    # What comes first is followed first, while the budget lasts.
    if fits:
        return [
            proposal
            for proposal in (
                *_options(candidates, chosen, budget, fits),
                *_adaptations(candidates, chosen, budget, facts),
                *_settings(candidates, chosen, budget),
                *_all_gpus(candidates, chosen, budget),
                *_subset(candidates, chosen, facts),
            )
            if _helps(proposal, chosen)
        ]
    return [
        *_left_to_the_plan(candidates, wanted),
        *_settings(candidates, chosen, budget),
        *_options(candidates, chosen, budget, fits),
        *_adaptations(candidates, chosen, budget, facts),
        *_all_gpus(candidates, chosen, budget),
        *_subset(candidates, chosen, facts),
    ]


def _helps(proposal: Proposal, chosen: Candidate) -> bool:
    """Whether it saves a twentieth of the time or a tenth of the memory, or nobody knows."""
    if proposal.peak_bytes is None or "subset" in proposal.values or not proposal.trains:
        return True
    if "optimizer_states" in proposal.values:  # made for memory; of its time only the bytes are known
        return proposal.peak_bytes < 0.9 * chosen.memory.peak_bytes
    faster = proposal.update_seconds is not None and proposal.update_seconds < 0.95 * chosen.seconds
    return faster or proposal.peak_bytes < 0.9 * chosen.memory.peak_bytes


def smaller_files(chosen: Candidate, needs: Callable[[Candidate], int], has: int | None) -> list[Proposal]:
    """Weights alone in half precision, where a run whose disk `needs` so many bytes goes beyond what it `has`."""
    if has is None or chosen.settings.light_weights != "own" or needs(chosen) <= has:
        return []
    rounded = replace(chosen, settings=chosen.settings.replace(light_weights="fp16"))
    fits = needs(rounded) <= has
    proposal = _priced(
        "best and last weights in half precision", {"light_weights": "fp16"}, rounded, changes_learning=False
    )
    return [replace(proposal, limit="disk", fits=fits, note=f"{bytes_text(needs(rounded))} of disk")]


def smallest(proposed: Sequence[Proposal], limit: str = "memory") -> Proposal | None:
    """The first that makes it fit and can be run: what keeps the learning comes before what changes it."""
    helping = [each for each in proposed if each.fits and each.trains and each.values and each.limit == limit]
    return min(helping, key=lambda each: each.changes_learning, default=None)


def next_device(target: Target, needs: int) -> str:
    """The smallest GPU of the catalogue with so many bytes, in words; empty where none has them."""
    larger = sorted((each.memory_bytes, each.title) for each in DEVICES.values() if each.memory_bytes >= needs)
    return f"{larger[0][1]} ({bytes_text(larger[0][0])})" if larger and target.device.kind == "cuda" else ""


def _left_to_the_plan(candidates: Candidates, wanted: Settings) -> Iterator[Proposal]:
    """What was asked for and does not fit, chosen by the plan instead."""
    asked = {name: value for name in _CHOSEN if (value := getattr(wanted, name)) is not None}
    if not asked:
        return
    best = fastest(consider(candidates, wanted.replace(**dict.fromkeys(_CHOSEN))))
    if best:
        values = {name: getattr(best.settings, name) for name in _CHOSEN}
        changed = {name: value for name, value in values.items() if value not in (None, asked.get(name))}
        yield _priced(f"{', '.join(asked)} left to the plan", changed, best, changes_learning=False)


def _settings(candidates: Candidates, chosen: Candidate, budget: _Budget) -> Iterator[Proposal]:
    """What changes rounding at most, and time in ways that are not predicted."""
    if candidates.target.device.kind == "cpu":
        return
    changes: list[tuple[str, dict[str, Any], str]] = []
    if chosen.settings.allocator == "segments":
        changes.append(("memory in segments that grow", {"allocator": "expandable"}, ""))
    if chosen.settings.offload == "no":
        slower = "slower, by how much is not predicted: states are updated by the machine's cores"
        changes.append(("optimizer states in host memory", {"offload": "optimizer"}, slower))
    for name, values, note in changes:
        settings = chosen.settings.replace(**values)
        if "offload" in values:
            settings = settings.replace(optimizer_kernel=None)
        followed = _followed(candidates, {}, settings, budget)
        if isinstance(followed, Candidate):
            yield _priced(name, values, followed, changes_learning=False, note=note, timed="offload" not in values)
        elif followed:
            yield Proposal(name=name, values=values, changes_learning=False, note=followed)


def _options(candidates: Candidates, chosen: Candidate, budget: _Budget, fits: bool) -> Iterator[Proposal]:
    """Less of what a recipe says a sample has."""
    loaded = candidates.loaded
    names = [name for name in SMALLER if isinstance(loaded.options.get(name), int) and loaded.options[name] > 1]
    if loaded.parts.rollout is not None:
        names += [name for name in ("written_at_once", "effective_batch") if name not in names]
    for name in names:
        now = loaded.options.get(name) or loaded.effective_batch
        title = SMALLER.get(name, "a smaller update, whose completions are all written at once")
        parts = range(1, _PARTS)
        values = sorted({max(1, now * share // _PARTS) for share in parts} - {now})
        values = [value for value in values if _possible(loaded, {name: value})]
        if not values:
            continue
        if fits:
            values = [min(values, key=lambda value: abs(value - now / 2))]
        if proposal := _largest_that_fits(candidates, chosen, budget, name, values, title):
            yield proposal


def _largest_that_fits(
    candidates: Candidates, chosen: Candidate, budget: _Budget, name: str, values: list[int], title: str
) -> Proposal | None:
    """The proposal of the largest of the values (in rising order) that fits, or of the smallest where none does."""
    changes_learning = "no more than rounding" not in title
    best: Proposal | None = None
    low, high = -1, len(values)
    while high - low > 1:
        place = (low + high) // 2 if best or high < len(values) else 0
        change = {name: values[place]}
        followed = _followed(candidates, change, _within(candidates, chosen.settings, change), budget)
        if isinstance(followed, str):
            if best or not followed:
                return best
            return Proposal(name=title, values=change, changes_learning=changes_learning, note=followed)
        proposal = _priced(title, change, followed, changes_learning=changes_learning)
        if followed.fits:
            low, best = place, proposal
        else:
            high = place
            best = best or proposal
    return best


def _adaptations(candidates: Candidates, chosen: Candidate, budget: _Budget, facts: Facts) -> Iterator[Proposal]:
    """What may be done to any recipe's model, where nothing of it is done yet."""
    known, options = option_fields(candidates.loaded), candidates.loaded.options
    default = vars(Adaptation())
    for values, title in ADAPTED:
        untouched = all(name in known and options.get(name) == default[name] for name in values)
        if untouched and facts.parameters_trainable == facts.parameters_total and _possible(candidates.loaded, values):
            # An optimizer of another kind has kernels of its own.
            settings = chosen.settings.replace(optimizer_kernel=None)
            followed = _followed(candidates, values, settings, budget)
            if isinstance(followed, Candidate):
                yield _priced(title, values, followed, changes_learning=True)
            elif followed:
                yield Proposal(name=title, values=values, changes_learning=True, note=followed)


def _all_gpus(candidates: Candidates, chosen: Candidate, budget: _Budget) -> Iterator[Proposal]:
    """All of the target's GPUs, which the engine does not use yet."""
    gpus = candidates.target.processes
    if gpus < 2:
        return
    title = f"all {gpus} GPUs (can be estimated, not trained yet)"
    share = -(-candidates.loaded.effective_batch // gpus)
    settings = chosen.settings.replace(micro_batch=min(chosen.settings.micro_batch or share, share))
    followed = _followed(candidates, {}, settings, budget, gpus=gpus)
    if isinstance(followed, Candidate):
        yield _priced(title, {}, followed, changes_learning=False, trains=False)
    elif followed:
        yield Proposal(name=title, values={}, changes_learning=False, trains=False, note=followed)


def _subset(candidates: Candidates, chosen: Candidate, facts: Facts) -> Iterator[Proposal]:
    """A part of the data, where there are any and all of them are asked for."""
    if not facts.samples or candidates.loaded.options.get("subset", 0) is not None:
        return
    yield Proposal(
        name="a stratified tenth of the data: a tenth of the time",
        values={"subset": 0.1},
        changes_learning=True,
        fits=chosen.fits,
        peak_bytes=chosen.memory.peak_bytes,
        high_bytes=chosen.memory.high_bytes,
        update_seconds=chosen.time.value if chosen.time else None,
        settings=chosen.settings.json(),
    )


def _followed(
    candidates: Candidates, change: Mapping[str, Any], settings: Settings, budget: _Budget, *, gpus: int = 1
) -> Candidate | str:
    """The candidate, or why it was not followed; empty where it cannot be."""
    if not budget.allows_a_trace():
        return "not followed, as that takes as long as the plan: ask with --set"
    try:
        candidate = candidates.changed(change, settings, gpus=gpus)
    except (UsageError, TraceError):
        return ""
    budget.spend(candidate.trace)
    return candidate


def _within(candidates: Candidates, settings: Settings, change: Mapping[str, Any]) -> Settings:
    """The settings with a microbatch that the effective batch still has."""
    size = int(change.get("effective_batch", candidates.loaded.effective_batch))
    return settings.replace(micro_batch=min(settings.micro_batch or size, size))


def _possible(loaded: LoadedRecipe, change: Mapping[str, Any]) -> bool:
    try:
        loaded.replace(**change)
    except UsageError:
        return False
    return True


def _priced(
    name: str,
    values: Mapping[str, Any],
    candidate: Candidate,
    *,
    changes_learning: bool,
    trains: bool = True,
    note: str = "",
    timed: bool = True,
) -> Proposal:
    return Proposal(
        name=name,
        values=values,
        changes_learning=changes_learning,
        trains=trains,
        fits=candidate.fits,
        peak_bytes=candidate.memory.peak_bytes,
        high_bytes=candidate.memory.high_bytes,
        update_seconds=candidate.time.value if candidate.time and timed else None,
        note=note,
        settings=candidate.settings.json(),
    )
