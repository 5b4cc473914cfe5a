"""PyTorch Geometric: graph classification with GIN, as in the example `mutag_gin.py`, on random graphs."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GIN, MLP, global_add_pool

NODES, FEATURES = 12, 7


class Graphs:
    """Random graphs; the class says whether the graph is dense."""

    def __len__(self) -> int:
        return 192

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        edges = torch.randint(NODES, (2, 16 if index % 2 else 40), generator=generator)
        return Data(x=torch.rand(NODES, FEATURES, generator=generator), edge_index=edges, y=torch.tensor([index % 2]))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gnn = GIN(FEATURES, 16, 3, dropout=0.3, jk="cat")
        self.classifier = MLP([16, 16, 2], norm="batch_norm", dropout=0.3)

    def forward(self, data: Any) -> Any:
        pooled = global_add_pool(self.gnn(data.x, data.edge_index), data.batch, size=data.num_graphs)
        return self.classifier(pooled)


class GINRecipe:
    epochs, effective_batch, learning_rate = 2, 16, 0.01

    def model(self) -> Any:
        return Net()

    def batch(self, size: int) -> Any:
        return Batch.from_data_list([Graphs()[0] for _ in range(size)])

    def data(self) -> Any:
        return {"train": Graphs(), "validation": Graphs()}

    def collate(self, samples: Any) -> Any:
        return Batch.from_data_list(samples)

    def loss(self, model: Any, batch: Any) -> Any:
        return cross_entropy(model(batch), batch.y)
