"""The CRF is compared with an enumeration of all sequences."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from shoestring_recipes.legal.crf import CRF

LENGTHS = (5, 1, 3, 4)
LABELS = 3


@pytest.fixture
def crf() -> CRF:
    torch.manual_seed(0)
    crf = CRF(LABELS)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf


@pytest.fixture
def emissions() -> Tensor:
    return torch.randn(len(LENGTHS), max(LENGTHS), LABELS, generator=torch.Generator().manual_seed(1))


MASK = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


@torch.no_grad()
def score_all_sequences(crf: CRF, emissions: Tensor, length: int) -> dict[tuple[int, ...], float]:
    """Return the score of every sequence of one sample, summed in a loop."""
    scores = {}
    for labels in product(range(LABELS), repeat=length):
        score = crf.first[labels[0]] + crf.last[labels[-1]]
        score = score + sum(emissions[step, label] for step, label in enumerate(labels))
        scores[labels] = float(score + sum(crf.transitions[a, b] for a, b in pairwise(labels)))
    return scores


def pad(labels: tuple[int, ...]) -> list[int]:
    return [*labels, *[0] * (max(LENGTHS) - len(labels))]


def test_log_partition_is_the_sum_over_all_sequences(crf: CRF, emissions: Tensor) -> None:
    expected = [
        torch.tensor(list(score_all_sequences(crf, emissions[row], length).values())).logsumexp(0)
        for row, length in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(crf.log_partition(emissions, MASK), torch.stack(expected))


def test_likelihoods_of_all_sequences_sum_to_one(crf: CRF, emissions: Tensor) -> None:
    for row, length in enumerate(LENGTHS):
        labels = [pad(sequence) for sequence in product(range(LABELS), repeat=length)]
        repeated = emissions[row].expand(len(labels), -1, -1)
        losses = crf(repeated, torch.tensor(labels), MASK[row].expand(len(labels), -1))
        assert (-losses).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_decode_returns_the_sequence_of_the_highest_score(crf: CRF, emissions: Tensor) -> None:
    expected = []
    for row, length in enumerate(LENGTHS):
        scores = score_all_sequences(crf, emissions[row], length)
        expected.append(pad(max(scores, key=scores.__getitem__)))
    assert crf.decode(emissions, MASK).tolist() == expected


def test_padding_changes_no_bit(crf: CRF, emissions: Tensor) -> None:
    labels = torch.tensor([pad((2, 1, 0, 1, 2)[:length]) for length in LENGTHS])
    longer = torch.cat([emissions, torch.randn(len(LENGTHS), 4, LABELS)], dim=1)
    padding = torch.zeros(len(LENGTHS), 4)
    mask = torch.cat([MASK, padding.bool()], dim=1)
    longer[~mask] = 1e4  # the values in padding are arbitrary
    longer_labels = torch.cat([labels, padding.long()], dim=1).masked_fill(~mask, 2)
    assert torch.equal(crf(longer, longer_labels, mask), crf(emissions, labels, MASK))
    assert torch.equal(crf.decode(longer, mask)[:, : max(LENGTHS)], crf.decode(emissions, MASK))


def test_gradients_equal_finite_differences(crf: CRF, emissions: Tensor) -> None:
    """The comparison is in float64."""
    crf = crf.double()
    labels = torch.tensor([pad((2, 1, 0, 1, 2)[:length]) for length in LENGTHS])
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in crf.named_parameters()}

    def loss(emissions: Tensor, *values: Tensor) -> Tensor:
        losses: Tensor = functional_call(crf, dict(zip(weights, values, strict=True)), (emissions, labels, MASK))
        return losses

    assert torch.autograd.gradcheck(loss, (emissions.double().requires_grad_(), *weights.values()))


def test_marginals_are_sums_over_all_sequences(crf: CRF, emissions: Tensor) -> None:
    marginals = crf.marginals(emissions, MASK)
    expected = torch.zeros_like(marginals)
    for row, length in enumerate(LENGTHS):
        scores = score_all_sequences(crf, emissions[row], length)
        total = torch.tensor(list(scores.values())).logsumexp(0)
        for labels, score in scores.items():
            for step, label in enumerate(labels):
                expected[row, step, label] += torch.exp(score - total)
    torch.testing.assert_close(marginals, expected)
