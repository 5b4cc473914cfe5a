import torch
from torch import nn


# block


graph = onnx(None, nn.Flatten())
assert graph.compute([torch.zeros(2, 3, 4)]).shape == (2, 12)
