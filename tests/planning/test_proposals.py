"""The proposals of a plan whose requested settings do not fit."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.planning.gpus import search
from shoestring.planning.proposals.choice import proposals
from shoestring.recipe.finding import find
from shoestring.recipe.option_notes import Cheaper
from tests.planning.estimate.example_traces import FACTS
from tests.planning.fake_candidates import GIB, FakeCandidates, bytes_per_sample


class MinimalRecipe:
    effective_batch = 64

    def model(self): ...

    def batch(self, size): ...

    def loss(self, model, batch): ...


class FixedOptionsCandidates(FakeCandidates):
    """Other options are not possible, so that all proposals are settings."""

    def __init__(self, **costs):
        super().__init__(**costs)
        self.loaded = find(MinimalRecipe())

    def evaluate_with_options(self, changes, settings):
        raise UsageError("no other options")


def proposals_for(candidates, requested):
    (chosen, *_) = search(candidates, requested)
    assert not chosen.fits
    return proposals(candidates, chosen, requested, fits=False, facts=FACTS)


def test_plan_proposes_to_choose_settings_that_do_not_fit():
    candidates = FixedOptionsCandidates(bytes_of=bytes_per_sample(0.5))
    (proposal,) = proposals_for(candidates, Settings(precision="fp32", micro_batch=64))
    assert proposal.name == "micro_batch, precision chosen by the plan"
    assert proposal.values == {"micro_batch": 22, "precision": "fp16", "checkpointing": "no"}
    assert proposal.fits and not proposal.changes_learning
    (proposal,) = proposals_for(candidates, Settings(precision="fp16", micro_batch=64))
    assert proposal.name == "micro_batch, precision chosen by the plan"
    assert proposal.values == {"micro_batch": 22, "checkpointing": "no"}  # fp16 as before


def test_adapters_are_proposed_for_pretrained_weights():
    class AdaptedCandidates(FixedOptionsCandidates):
        def evaluate_with_options(self, changes, settings):
            return self.evaluate(settings)

    candidates = AdaptedCandidates(bytes_of=bytes_per_sample(2))
    # Whether an adapted model needs streamed blocks is open.
    streamed = Settings(streamed_blocks=8, stream_from="disk", stream_order="block", checkpointing="full")
    chosen = candidates.evaluate(streamed.replace(precision="fp32", micro_batch=64))
    for is_pretrained, count in ((True, 2), (False, 0)):
        facts = replace(FACTS, is_pretrained=is_pretrained)
        proposed = proposals(candidates, chosen, chosen.settings, fits=False, facts=facts)
        assert sum("lora_r" in proposal.values for proposal in proposed) == count
        assert any("optimizer_states" in proposal.values for proposal in proposed)


def test_optimizer_states_in_host_memory_are_proposed_where_they_matter():
    states, activations = "optimizer states", "activations"
    for part, compiled, is_proposed in ((states, "no", True), (states, "graphs", False), (activations, "no", False)):
        candidates = FixedOptionsCandidates(bytes_of=bytes_per_sample(2))
        candidates.part = part
        candidates.evaluate_with_options = lambda changes, settings, evaluate=candidates.evaluate: evaluate(settings)
        settings = Settings(precision="fp32", micro_batch=64, checkpointing="no", compile=compiled)
        proposed = proposals_for(candidates, settings)
        assert any(proposal.values == {"offload": "optimizer"} for proposal in proposed) == is_proposed


def test_no_proposal_without_requested_settings():
    evaluated = []

    def bytes_of(settings):
        evaluated.append(settings)
        if settings.checkpointing == "full":
            raise UsageError("no blocks")
        return 99 * GIB

    assert proposals_for(FixedOptionsCandidates(bytes_of=bytes_of, blocks=8), Settings()) == []
    assert len(evaluated) == len(set(evaluated))


def test_only_possible_settings_are_evaluated_once_per_precision():
    evaluated = []

    def bytes_of(settings):
        evaluated.append(settings.micro_batch)
        if settings.micro_batch != 48:
            raise UsageError("48 or nothing")
        return 99 * GIB

    assert proposals_for(FixedOptionsCandidates(bytes_of=bytes_of), Settings(micro_batch=48)) == []
    assert evaluated == [48, 48, 64, 64]  # in two precisions, as requested and with an open microbatch


@dataclass(frozen=True, kw_only=True)
class Options:
    narrow: Annotated[int, "how much is learned", Cheaper("less")] = 800
    chunk: Annotated[int, "how much at once", Cheaper("smaller chunks", changes_learning=False)] = 800
    attention: Annotated[Literal["near", "some", "all"], "who sees whom", Cheaper("some", values=["near", "some"])] = (
        "all"
    )
    groups: Annotated[int | None, "none: all of narrow", Cheaper("groups", unset="narrow", order=-1)] = None
    size: Annotated[int, "nothing that a plan may propose"] = 800


class WithOptions(MinimalRecipe):
    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()


@pytest.mark.parametrize(
    ("option", "events", "largest", "values", "proposed"),
    [
        ("narrow", 10, 300, [400, 200, 300], 300),
        ("narrow", 10, 750, [400, 600, 700], 700),
        ("narrow", 10, 50, [400, 200, 100], 100),  # none fits: the smallest
        ("narrow", 110_000, 750, [400], 400),  # a larger value is not worth a long trace
        ("chunk", 10, 750, [100], 100),  # what is learned does not depend on it, and a larger one is not faster
        ("chunk", 10, 50, [100], 100),
    ],
)
def test_smaller_value_of_an_option(option, events, largest, values, proposed):
    traced = []

    class OptionCandidates(FakeCandidates):
        def evaluate_with_options(self, changes, settings):
            if list(changes) != [option]:
                raise UsageError("another option")
            value = changes[option]
            traced.append(value)
            candidate = self.evaluate(settings)
            fits = value <= largest
            return replace(
                candidate,
                memory=SimpleNamespace(fits=fits, peak_bytes=value, high_bytes=value, parts=()),
                trace=replace(candidate.trace, events=candidate.trace.events[:1] * events),
            )

    candidates = OptionCandidates(bytes_of=lambda _: 99 * GIB)
    candidates.loaded = find(WithOptions())
    chosen = candidates.evaluate(Settings(precision="fp16", micro_batch=1, checkpointing="no"))
    by_name = {
        name: proposal
        for proposal in proposals(candidates, chosen, chosen.settings, fits=False, facts=FACTS)
        for name in proposal.values
    }
    assert traced == values
    assert by_name[option].values == {option: proposed} and by_name[option].fits == (proposed <= largest)


def test_options_are_proposed_as_they_declare():
    class Candidates(FakeCandidates):
        def evaluate_with_options(self, changes, settings):
            return replace(
                self.evaluate(settings), memory=SimpleNamespace(fits=True, peak_bytes=1, high_bytes=1, parts=())
            )

    candidates = Candidates(bytes_of=lambda _: 99 * GIB)
    candidates.loaded = find(WithOptions()).replace(narrow=100, chunk=1)
    chosen = candidates.evaluate(Settings(precision="fp16", micro_batch=1, checkpointing="no"))

    def proposed(fits):
        answer = proposals(candidates, chosen, chosen.settings, fits=fits, facts=FACTS)
        own = [proposal for proposal in answer if proposal.values.keys() <= vars(Options()).keys() and proposal.values]
        return [(proposal.name, dict(proposal.values)) for proposal in own]

    assert proposed(fits=False) == [
        ("less", {"narrow": 87}),
        ("some", {"attention": "some"}),
        ("groups", {"groups": 87}),
    ]
    assert proposed(fits=True) == [
        ("less", {"narrow": 50}),
        ("some", {"attention": "some"}),
        ("groups", {"groups": 50}),
    ]
