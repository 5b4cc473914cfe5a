"""What a plan proposes where what was asked for does not fit."""

from shoestring.errors import UsageError
from shoestring.plan.proposals import proposals
from shoestring.plan.search import search
from shoestring.recipe.finding import find
from shoestring.settings import Settings
from tests.estimate.handmade_traces import FACTS
from tests.plan.made_candidates import GIB, Made, per_sample


class Anything:
    effective_batch = 64

    def model(self): ...

    def batch(self, size): ...

    def loss(self, model, batch): ...


class Unchanged(Made):
    """No other options are possible, so that all proposals are those of settings."""

    def __init__(self, **costs):
        super().__init__(**costs)
        self.loaded = find(Anything())

    def changed(self, changes, settings, *, gpus=1):
        raise UsageError("no other options")


def proposed(made, wanted):
    (chosen, *_) = search(made, wanted)
    assert not chosen.fits
    return proposals(made, chosen, wanted, fits=False, facts=FACTS)


def test_what_was_asked_for_and_does_not_fit_is_left_to_the_plan():
    made = Unchanged(bytes_of=per_sample(0.5))
    (proposal,) = proposed(made, Settings(precision="fp32", micro_batch=64))
    assert proposal.name == "micro_batch, precision left to the plan"
    assert proposal.values == {"micro_batch": 22, "precision": "fp16", "checkpointing": "no"}
    assert proposal.fits and not proposal.changes_learning
    (proposal,) = proposed(made, Settings(precision="fp16", micro_batch=64))
    assert proposal.name == "micro_batch, precision left to the plan"
    assert proposal.values == {"micro_batch": 22, "checkpointing": "no"}  # fp16 as before


def test_nothing_is_left_to_the_plan_where_nothing_was_asked_for():
    questions = []

    def bytes_of(settings):
        questions.append(settings)
        if settings.checkpointing == "full":
            raise UsageError("no blocks")
        return 99 * GIB

    assert proposed(Unchanged(bytes_of=bytes_of, blocks=8), Settings()) == []
    assert len(questions) == len(set(questions))


def test_a_recipe_that_can_have_nothing_else_is_planned_without_more_questions():
    questions = []

    def bytes_of(settings):
        questions.append(settings.micro_batch)
        if settings.micro_batch != 48:
            raise UsageError("48 or nothing")
        return 99 * GIB

    assert proposed(Unchanged(bytes_of=bytes_of), Settings(micro_batch=48)) == []
    assert questions == [48, 48, 64, 64]  # in two precisions, as asked and as it may be
