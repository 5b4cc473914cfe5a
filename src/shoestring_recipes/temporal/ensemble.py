"""An ensemble of the three networks, trained jointly, with learned weights that depend on the bar.

A classifier predicts probabilities of market regimes, as many as there are members; each regime has its own weights
over the members. Regimes are not defined in advance: they are learned as the ones that give the best weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """A mixture of the members' probabilities (Jacobs et al., 1991), with weights that are never negative and sum to 1.

    Maps (n, seq_len, features) to log-probabilities (n, classes); cross-entropy accepts them as logits.
    """

    def __init__(self, members: Mapping[str, nn.Module], features: int, *, widths: tuple[int, int]) -> None:
        super().__init__()
        first, second = widths
        self.members = nn.ModuleDict(members)
        self.regime = nn.Sequential(
            nn.Linear(features, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, len(members))
        )
        # One row for each regime. If they were equal, all regimes would get the same gradient and never differ.
        self.believed = nn.Parameter(torch.eye(len(members)))

    def forward(self, x: Tensor) -> Tensor:
        log_probabilities = torch.stack([member(x).log_softmax(dim=-1) for member in self.members.values()], dim=1)
        return torch.logsumexp(self.log_weights(x)[..., None] + log_probabilities, dim=1)

    def log_weights(self, x: Tensor) -> Tensor:
        """Return the logarithms of the members' weights, (n, members), from the regime of the last bar."""
        regimes = self.regime(x[:, -1]).log_softmax(dim=-1)
        return torch.logsumexp(regimes[..., None] + self.believed.log_softmax(dim=-1), dim=1)
