"""A linear-chain conditional random field: likelihood and decoding of sequences of labels.

Lafferty, McCallum and Pereira, ICML 2001. The sum over all sequences is a product of matrices in log space, reduced in
pairs: its depth is the logarithm of the length, while the usual recursion launches kernels for every single step.
"""

import torch
from torch import Tensor, nn

_LOG_ZERO = -1e9
"""Finite stand-in for the logarithm of 0; -inf would cause gradients of 0 * inf."""


class CRF(nn.Module):
    """Learned scores of the first label, of the last label and of each transition (from, to)."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(labels).uniform_(-0.1, 0.1))
        self.last = nn.Parameter(torch.empty(labels).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(labels, labels).uniform_(-0.1, 0.1))

    def forward(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sequence, (n,).

        `emissions` is (n, steps, labels), `labels` (n, steps) int64 and `mask` (n, steps) bool, which starts with True
        and has no True after a False.
        """
        # Sums over the length of a judgment exceed the precision of 16 bits.
        emissions = emissions.to(self.transitions.dtype)
        return self.log_partition(emissions, mask) - self.score(emissions, labels, mask)

    def score(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Return the unnormalized log-score of the sequences `labels`, (n,)."""
        emission_scores = emissions.gather(2, labels[..., None])[..., 0] * mask
        transition_scores = self.transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]
        last_labels = labels.gather(1, mask.sum(1, keepdim=True) - 1)[:, 0]
        return emission_scores.sum(1) + transition_scores.sum(1) + self.first[labels[:, 0]] + self.last[last_labels]

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the log-sum-exp of the scores of all sequences, (n,)."""
        start = (self.first + emissions[:, 0])[:, None, :]
        identity = torch.full_like(self.transitions, _LOG_ZERO).fill_diagonal_(0.0)
        steps = self.transitions + emissions[:, 1:, None, :]
        # A step of padding is the identity matrix.
        steps = torch.where(mask[:, 1:, None, None], steps, identity)
        while steps.shape[1] > 1:
            odd = steps[:, -1:] if steps.shape[1] % 2 else steps[:, :0]
            steps = torch.cat([_log_matmul(steps[:, :-1:2], steps[:, 1::2]), odd], dim=1)
        total = _log_matmul(start, steps[:, 0]) if steps.shape[1] else start
        return torch.logsumexp(total[:, 0] + self.last, dim=1)

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the most likely sequences (Viterbi), (n, steps) int64; 0 where `mask` is False."""
        emissions = emissions.to(self.transitions.dtype)
        score = self.first + emissions[:, 0]
        backpointers = []
        for step in range(1, emissions.shape[1]):
            best_scores, previous = (score[:, :, None] + self.transitions).max(dim=1)
            inside = mask[:, step, None]
            score = torch.where(inside, best_scores + emissions[:, step], score)
            # Within padding the backpointer of a label is the label itself.
            backpointers.append(torch.where(inside, previous, torch.arange(score.shape[1], device=score.device)))
        label = (score + self.last).argmax(dim=1, keepdim=True)
        labels = [label]
        for previous in reversed(backpointers):
            label = previous.gather(1, label)
            labels.append(label)
        return torch.cat(labels[::-1], dim=1) * mask

    @torch.no_grad()
    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the probability of each label at each step (forward-backward), (n, steps, labels).

        It is 0 where `mask` is False.
        """
        emissions = emissions.to(self.transitions.dtype)
        before = [self.first + emissions[:, 0]]
        for step in range(1, emissions.shape[1]):
            score = torch.logsumexp(before[-1][:, :, None] + self.transitions, dim=1) + emissions[:, step]
            before.append(torch.where(mask[:, step, None], score, before[-1]))
        after = [self.last.expand_as(before[0])]
        for step in range(emissions.shape[1] - 1, 0, -1):
            score = torch.logsumexp(self.transitions + (emissions[:, step] + after[-1])[:, None, :], dim=2)
            after.append(torch.where(mask[:, step, None], score, after[-1]))
        scores = torch.stack(before, dim=1) + torch.stack(after[::-1], dim=1)
        return scores.softmax(dim=-1) * mask[..., None]


def _log_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices (..., a, b) and (..., b, c) in log space."""
    return torch.logsumexp(left[..., :, :, None] + right[..., None, :, :], dim=-2)
