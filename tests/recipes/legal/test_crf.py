"""Against all sequences, counted one by one."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from shoestring.recipes.legal.crf import CRF

LENGTHS = (5, 1, 3, 4)
LABELS = 3


@pytest.fixture
def crf() -> CRF:
    torch.manual_seed(0)
    made = CRF(LABELS)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


@pytest.fixture
def emissions() -> Tensor:
    return torch.randn(len(LENGTHS), max(LENGTHS), LABELS, generator=torch.Generator().manual_seed(1))


MASK = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


@torch.no_grad()
def all_sequences(crf: CRF, emissions: Tensor, length: int) -> dict[tuple[int, ...], float]:
    """The score of every sequence of one sample, added up by hand."""
    found = {}
    for labels in product(range(LABELS), repeat=length):
        score = crf.first[labels[0]] + crf.last[labels[-1]]
        score = score + sum(emissions[step, label] for step, label in enumerate(labels))
        found[labels] = float(score + sum(crf.transitions[a, b] for a, b in pairwise(labels)))
    return found


def padded(labels: tuple[int, ...]) -> list[int]:
    return [*labels, *[0] * (max(LENGTHS) - len(labels))]


def test_the_normaliser_is_the_sum_over_all_sequences(crf: CRF, emissions: Tensor) -> None:
    expected = [
        torch.tensor(list(all_sequences(crf, emissions[row], length).values())).logsumexp(0)
        for row, length in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(crf.normaliser(emissions, MASK), torch.stack(expected))


def test_likelihoods_of_all_sequences_sum_to_one(crf: CRF, emissions: Tensor) -> None:
    for row, length in enumerate(LENGTHS):
        labels = [padded(one) for one in product(range(LABELS), repeat=length)]
        many = emissions[row].expand(len(labels), -1, -1)
        losses = crf(many, torch.tensor(labels), MASK[row].expand(len(labels), -1))
        assert (-losses).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_the_best_sequence_is_the_one_of_the_highest_score(crf: CRF, emissions: Tensor) -> None:
    expected = []
    for row, length in enumerate(LENGTHS):
        scores = all_sequences(crf, emissions[row], length)
        expected.append(padded(max(scores, key=scores.__getitem__)))
    assert crf.best(emissions, MASK).tolist() == expected


def test_padding_changes_no_bit(crf: CRF, emissions: Tensor) -> None:
    labels = torch.tensor([padded((2, 1, 0, 1, 2)[:length]) for length in LENGTHS])
    longer = torch.cat([emissions, torch.randn(len(LENGTHS), 4, LABELS)], dim=1)
    more = torch.zeros(len(LENGTHS), 4)
    mask = torch.cat([MASK, more.bool()], dim=1)
    longer[~mask] = 1e4  # what stands in padding may be anything
    labels_too = torch.cat([labels, more.long()], dim=1).masked_fill(~mask, 2)
    assert torch.equal(crf(longer, labels_too, mask), crf(emissions, labels, MASK))
    assert torch.equal(crf.best(longer, mask)[:, : max(LENGTHS)], crf.best(emissions, MASK))


def test_gradients_are_those_of_the_plain_sum(crf: CRF, emissions: Tensor) -> None:
    """In float64, against finite differences."""
    crf = crf.double()
    labels = torch.tensor([padded((2, 1, 0, 1, 2)[:length]) for length in LENGTHS])
    weights = {name: one.detach().clone().requires_grad_() for name, one in crf.named_parameters()}

    def loss(emissions: Tensor, *values: Tensor) -> Tensor:
        found: Tensor = functional_call(crf, dict(zip(weights, values, strict=True)), (emissions, labels, MASK))
        return found

    assert torch.autograd.gradcheck(loss, (emissions.double().requires_grad_(), *weights.values()))
