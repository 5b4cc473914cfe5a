import torch
from torch import nn


# block


graph = onnx(None, nn.Flatten())
(output,) = graph.compute([torch.zeros(2, 3, 4)])
assert output.shape == (2, 12)
