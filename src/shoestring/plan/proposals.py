"""What a plan never does by itself, priced: it changes what is learnt, or leaves what was asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoestring.config import as_json
from shoestring.errors import QuestionError, TraceError
from shoestring.hardware.catalog import DEVICES, Target
from shoestring.plan.candidates import Candidate, Candidates
from shoestring.plan.search import fastest, search
from shoestring.recipe.options import Adaptation, LoadedRecipe, option_fields
from shoestring.settings import Settings
from shoestring.trace.record import Facts
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

_PARTS = 8
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


class _Purse:
    """What is left to be spent on traces, in events: the same for the same question, unlike seconds."""

    def __init__(self, events: int, each: int) -> None:
        self._left, self._each = events, each

    def pays(self) -> bool:
        return self._left >= self._each

    def spend(self, found: Candidate) -> Candidate:
        self._left -= len(found.trace.events)
        return found


def proposals(
    candidates: Candidates, chosen: Candidate, wanted: Settings, *, fits: bool, facts: Facts
) -> list[Proposal]:
    """Everything known to help, priced as far as that takes no longer than the plan itself.

    Where the plan does not fit, of each option the largest value that does.
    """
    purse = _Purse(BUDGET if fits else BUDGET_WITHOUT_A_PLAN, len(chosen.trace.events))
    found = [*_released(candidates, wanted, fits)]
    if not fits:
        found += _settings(candidates, chosen, purse)
    found += _options(candidates, chosen, purse, fits)
    found += _adapted(candidates, chosen, purse, facts)
    if fits:
        found += _settings(candidates, chosen, purse)
    found += _several(candidates, chosen, purse)
    if facts.samples and candidates.loaded.options.get("subset", 0) is None:
        found.append(_subset(chosen))
    return [each for each in found if not fits or _helps(each, chosen)]


def _helps(each: Proposal, chosen: Candidate) -> bool:
    """Whether it saves a twentieth of the time or a tenth of the memory, or nobody knows."""
    if each.peak_bytes is None or "subset" in each.values or not each.trains:
        return True
    if "optimizer_states" in each.values:  # made for memory; of its time only the bytes are known
        return each.peak_bytes < 0.9 * chosen.memory.peak_bytes
    faster = each.update_seconds is not None and each.update_seconds < 0.95 * chosen.seconds
    return faster or each.peak_bytes < 0.9 * chosen.memory.peak_bytes


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


def smallest(found: Sequence[Proposal], limit: str = "memory") -> Proposal | None:
    """The first that makes it fit and can be run: what keeps the learning comes before what changes it."""
    helping = [each for each in found if each.fits and each.trains and each.values and each.limit == limit]
    return min(helping, key=lambda each: each.changes_learning, default=None)


def next_device(target: Target, needs: int) -> str:
    """The smallest GPU of the catalogue with so many bytes, in words; empty where none has them."""
    larger = sorted((each.memory_bytes, each.title) for each in DEVICES.values() if each.memory_bytes >= needs)
    return f"{larger[0][1]} ({bytes_text(larger[0][0])})" if larger and target.device.kind == "cuda" else ""


def _released(candidates: Candidates, wanted: Settings, fits: bool) -> Iterator[Proposal]:
    """Settings that were asked for, left to the plan."""
    open_ = {"micro_batch": None, "precision": None, "checkpointing": None, "optimizer_kernel": None}
    asked = {name: getattr(wanted, name) for name in open_ if getattr(wanted, name) is not None}
    if fits or not asked:
        return
    best = fastest(search(candidates, wanted.replace(**open_)))
    if best:
        values = {
            name: getattr(best.settings, name)
            for name in open_
            if getattr(best.settings, name) != getattr(wanted, name)
        }
        values = {name: value for name, value in values.items() if value is not None}
        yield _priced(f"{', '.join(asked)} left to the plan", values, best, changes_learning=False)


def _settings(candidates: Candidates, chosen: Candidate, purse: _Purse) -> Iterator[Proposal]:
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
        found = _followed(candidates, {}, settings, purse)
        if isinstance(found, Candidate):
            yield _priced(name, values, found, changes_learning=False, note=note, timed="offload" not in values)
        elif found:
            yield Proposal(name=name, values=values, changes_learning=False, note=found)


def _options(candidates: Candidates, chosen: Candidate, purse: _Purse, fits: bool) -> Iterator[Proposal]:
    """Less of what a recipe says a sample has."""
    loaded = candidates.loaded
    names = [name for name in SMALLER if isinstance(loaded.options.get(name), int) and loaded.options[name] > 1]
    if loaded.parts.rollout is not None:
        names += [name for name in ("written_at_once", "effective_batch") if name not in names]
    for name in names:
        now = loaded.options.get(name) or loaded.effective_batch
        says = SMALLER.get(name, "a smaller update, whose completions are all written at once")
        parts = range(1, _PARTS)
        values = sorted({max(1, now * share // _PARTS) for share in parts} - {now})
        values = [value for value in values if _possible(loaded, {name: value})]
        if not values:
            continue
        if fits:
            values = [min(values, key=lambda value: abs(value - now / 2))]
        if found := _largest_that_fits(candidates, chosen, purse, name, values, says):
            yield found


def _largest_that_fits(
    candidates: Candidates, chosen: Candidate, purse: _Purse, name: str, values: list[int], says: str
) -> Proposal | None:
    """The proposal of the largest of the values (in rising order) that fits, or of the smallest where none does."""
    learns = "no more than rounding" not in says
    best: Proposal | None = None
    low, high = -1, len(values)
    while high - low > 1:
        place = (low + high) // 2 if best or high < len(values) else 0
        change = {name: values[place]}
        found = _followed(candidates, change, _within(candidates, chosen.settings, change), purse)
        if isinstance(found, str):
            return best or (Proposal(name=says, values=change, changes_learning=learns, note=found) if found else None)
        proposal = _priced(says, change, found, changes_learning=learns)
        if found.fits:
            low, best = place, proposal
        else:
            high = place
            best = best or proposal
    return best


def _adapted(candidates: Candidates, chosen: Candidate, purse: _Purse, facts: Facts) -> Iterator[Proposal]:
    """What may be done to any recipe's model, where nothing of it is done yet."""
    known, options = option_fields(candidates.loaded), candidates.loaded.options
    default = vars(Adaptation())
    for values, says in ADAPTED:
        untouched = all(name in known and options.get(name) == default[name] for name in values)
        if untouched and facts.parameters_trainable == facts.parameters_total and _possible(candidates.loaded, values):
            # An optimizer of another kind has kernels of its own.
            settings = chosen.settings.replace(optimizer_kernel=None)
            found = _followed(candidates, values, settings, purse)
            if isinstance(found, Candidate):
                yield _priced(says, values, found, changes_learning=True)
            elif found:
                yield Proposal(name=says, values=values, changes_learning=True, note=found)


def _several(candidates: Candidates, chosen: Candidate, purse: _Purse) -> Iterator[Proposal]:
    """All of the target's GPUs, which the engine does not use yet."""
    gpus = candidates.target.processes
    if gpus < 2:
        return
    says = f"all {gpus} GPUs (can be estimated, not trained yet)"
    share = -(-candidates.loaded.effective_batch // gpus)
    settings = chosen.settings.replace(micro_batch=min(chosen.settings.micro_batch or share, share))
    found = _followed(candidates, {}, settings, purse, gpus=gpus)
    if isinstance(found, Candidate):
        yield _priced(says, {}, found, changes_learning=False, trains=False)
    elif found:
        yield Proposal(name=says, values={}, changes_learning=False, trains=False, note=found)


def _subset(chosen: Candidate) -> Proposal:
    return Proposal(
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
    candidates: Candidates, change: Mapping[str, Any], settings: Settings, purse: _Purse, *, gpus: int = 1
) -> Candidate | str:
    """The candidate, or why it was not followed; empty where it cannot be."""
    if not purse.pays():
        return "not followed, as that takes as long as the plan: ask with --set"
    try:
        return purse.spend(candidates.changed(change, settings, gpus=gpus))
    except (QuestionError, TraceError):
        return ""


def _within(candidates: Candidates, settings: Settings, change: Mapping[str, Any]) -> Settings:
    """The settings with a microbatch that the effective batch still has."""
    size = int(change.get("effective_batch", candidates.loaded.effective_batch))
    return settings.replace(micro_batch=min(settings.micro_batch or size, size))


def _possible(loaded: LoadedRecipe, change: Mapping[str, Any]) -> bool:
    try:
        loaded.replace(**change)
    except QuestionError:
        return False
    return True


def _priced(
    name: str,
    values: Mapping[str, Any],
    found: Candidate,
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
        fits=found.fits,
        peak_bytes=found.memory.peak_bytes,
        high_bytes=found.memory.high_bytes,
        update_seconds=found.time.value if found.time and timed else None,
        note=note,
        settings=found.settings.json(),
    )
