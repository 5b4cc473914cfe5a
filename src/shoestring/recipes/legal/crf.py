"""A linear-chain conditional random field: how likely a whole sequence of labels is, and which is the likeliest.

Lafferty, McCallum and Pereira, ICML 2001. The sum over all sequences is a product of matrices in log space, taken in
pairs: its depth is the logarithm of the length, where the usual recursion launches its kernels for every single step.
"""

import torch
from torch import Tensor, nn

_NEVER = -1e9
"""The logarithm of as good as nothing. An infinity would make gradients of 0 * inf."""


class CRF(nn.Module):
    """Scores of the first label, of the last one, and of each label after each other one (from, to)."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(labels).uniform_(-0.1, 0.1))
        self.last = nn.Parameter(torch.empty(labels).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(labels, labels).uniform_(-0.1, 0.1))

    def forward(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """The negative log-likelihood of each sequence, (n,).

        `emissions` (n, steps, labels), `labels` (n, steps) int64 and `mask` (n, steps) bool, which begins with True and
        stays False from its first False on.
        """
        # Sums over a judgment's length do not fit 16 bits.
        emissions = emissions.to(self.transitions.dtype)
        return self.normaliser(emissions, mask) - self.score(emissions, labels, mask)

    def score(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Of the sequences `labels`, (n,)."""
        own = emissions.gather(2, labels[..., None])[..., 0] * mask
        steps = self.transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]
        end = labels.gather(1, mask.sum(1, keepdim=True) - 1)[:, 0]
        return own.sum(1) + steps.sum(1) + self.first[labels[:, 0]] + self.last[end]

    def normaliser(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The logarithm of the sum over all sequences, (n,)."""
        begin = (self.first + emissions[:, 0])[:, None, :]
        nothing = torch.full_like(self.transitions, _NEVER).fill_diagonal_(0.0)
        steps = self.transitions + emissions[:, 1:, None, :]
        # A step of padding changes nothing.
        steps = torch.where(mask[:, 1:, None, None], steps, nothing)
        while steps.shape[1] > 1:
            odd = steps[:, -1:] if steps.shape[1] % 2 else steps[:, :0]
            steps = torch.cat([_product(steps[:, :-1:2], steps[:, 1::2]), odd], dim=1)
        total = _product(begin, steps[:, 0]) if steps.shape[1] else begin
        return torch.logsumexp(total[:, 0] + self.last, dim=1)

    @torch.no_grad()
    def best(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The likeliest sequences (Viterbi), (n, steps) int64; 0 where `mask` is False."""
        emissions = emissions.to(self.transitions.dtype)
        score = self.first + emissions[:, 0]
        came_from = []
        for step in range(1, emissions.shape[1]):
            reached, before = (score[:, :, None] + self.transitions).max(dim=1)
            inside = mask[:, step, None]
            score = torch.where(inside, reached + emissions[:, step], score)
            # Within padding a label came from itself.
            came_from.append(torch.where(inside, before, torch.arange(score.shape[1], device=score.device)))
        label = (score + self.last).argmax(dim=1, keepdim=True)
        found = [label]
        for before in reversed(came_from):
            label = before.gather(1, label)
            found.append(label)
        return torch.cat(found[::-1], dim=1) * mask


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Matrices (..., a, b) and (..., b, c) whose entries are logarithms."""
    return torch.logsumexp(left[..., :, :, None] + right[..., None, :, :], dim=-2)
