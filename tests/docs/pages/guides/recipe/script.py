import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


torch.Tensor.cuda = lambda tensor: tensor  # there may be no GPU
train_set = TensorDataset(torch.randn(128, 3, 32, 32), torch.randint(10, (128,)))
validate = nn.Module.eval
# block
assert loss.isfinite()
