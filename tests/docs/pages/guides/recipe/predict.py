import torch
from torch import nn


class Images:
    # block


rows = Images().predict(nn.Flatten(), (torch.zeros(2, 1, 2, 5), None))
assert [row["prediction"] for row in rows] == [0, 0]
