"""All three networks as one model, trained together: what each is worth is learnt, and may differ from bar to bar.

A classifier says which of as many regimes as there are members the market is in; each regime has weights of its own
over the members. Nothing says what a regime is: they are whatever tells best whom to believe.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """A mixture of the members' probabilities (Jacobs et al., 1991), with weights that are never negative and sum to 1.

    (n, seq_len, features) -> log-probabilities (n, classes), of which cross-entropy is as of logits.
    """

    def __init__(self, members: Mapping[str, nn.Module], features: int, *, widths: tuple[int, int]) -> None:
        super().__init__()
        first, second = widths
        self.members = nn.ModuleDict(members)
        self.regime = nn.Sequential(
            nn.Linear(features, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, len(members))
        )
        # A row for each regime. Were they equal, no regime would differ from another and none would ever be learnt.
        self.believed = nn.Parameter(torch.eye(len(members)))

    def forward(self, x: Tensor) -> Tensor:
        said = torch.stack([member(x).log_softmax(dim=-1) for member in self.members.values()], dim=1)
        return torch.logsumexp(self.log_weights(x)[..., None] + said, dim=1)

    def log_weights(self, x: Tensor) -> Tensor:
        """The logarithm of how much each member counts, (n, members), by the regime of the last bar."""
        regimes = self.regime(x[:, -1]).log_softmax(dim=-1)
        return torch.logsumexp(regimes[..., None] + self.believed.log_softmax(dim=-1), dim=1)
