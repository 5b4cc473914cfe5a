import torch
from torch import nn


# block


model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
images = torch.randn(3, 1, 2, 2)
predictions, mirrored = predict(None, model, (images, None)), predict(None, model, (images.flip(-1), None))
assert predictions.shape == (3,) and torch.allclose(predictions, mirrored)
