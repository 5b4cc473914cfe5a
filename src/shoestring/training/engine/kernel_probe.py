"""Small fixed computations, one or more for each library whose kernels decide the bits of a run, and their digests.

Which kernel a library chooses depends on the processor, on its own settings (`MKL_CBWR`, `ONEDNN_MAX_CPU_ISA`) and on
the shapes. No list of these is complete, so results are compared: other kernels that compute the same bits are equal.

A probe draws no random numbers, changes no setting of torch, and uses less than a megabyte.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.training.engine.machine_facts import fp32_modes

RECURRENT = "recurrent layers"
"""The name of the results of LSTM layers on a CPU."""
_DIGITS = 12
"""Of a digest: a difference that is there must be seen, nobody makes one that is not seen."""


def digests(device: torch.device, *, has_convolutions: bool) -> dict[str, str]:
    """Return the digest of what each library computes on the device, with the settings that torch has now.

    On a GPU, cuDNN is loaded only for a model that has convolutions or recurrent layers: it needs memory. A library
    without the kernels of a probe has no digest.
    """
    flags = (torch.get_num_threads(), torch.get_deterministic_debug_mode(), *fp32_modes().values())
    return dict(_digests(device, has_convolutions, flags))


def has_convolutions(model: nn.Module) -> bool:
    """Return whether the model has layers that cuDNN computes."""
    return any(isinstance(module, nn.modules.conv._ConvNd | nn.RNNBase) for module in model.modules())


@lru_cache(maxsize=16)
def _digests(device: torch.device, has_convolutions: bool, _flags: tuple[object, ...]) -> Mapping[str, str]:
    probes = dict(_ON_CPU if device.type == "cpu" else _ON_GPU)
    if device.type != "cpu" and not has_convolutions:
        del probes["cuDNN"]
    results: dict[str, str] = {}
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for library, compute in probes.items():
            with suppress(RuntimeError, NotImplementedError):  # a kernel that this build or device does not have
                results[library] = _digest(compute(device))
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    return results


def _digest(results: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in results:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:_DIGITS]


def _values(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers between -1 and 1 that are the same everywhere: of integers, divided by a power of two."""
    numbers = torch.arange(int(np.prod(shape)), dtype=torch.int64, device="cpu")
    integers = (numbers * 40_503 + 12_345) % 65_521 - 32_760
    return (integers.to(torch.float32) / 32_768).reshape(shape).to(device, dtype)


def _vectorized(device: torch.device) -> list[Tensor]:
    x = _values(device, 37, 129)
    row = x[0].abs() + 0.5
    return [
        *(x.exp(), x.tanh(), x.sigmoid(), x.erf(), x.sin(), row.log(), row.sqrt(), row.rsqrt(), row.pow(1.7)),
        *(x.sum(), x.sum(0), x.sum(1), x.mean(1), x.var(1), x.norm(), x.square().sum(1)),
        *(
            functional.softmax(x, 1),
            functional.log_softmax(x, 0),
            functional.layer_norm(x, (129,)),
            functional.silu(x),
            functional.gelu(x, approximate="tanh"),
        ),
        functional.batch_norm(x.reshape(1, 37, 129), None, None, training=True),
    ]


def _products(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    shapes = ((64, 256, 64), (33, 127, 65), (5, 300, 7), (1, 512, 33), (128, 64, 256))
    results = []
    for rows, inner, columns in shapes:
        left, right = _values(device, rows, inner, dtype=dtype), _values(device, inner, columns, dtype=dtype)
        results += [left @ right, left @ right.t().contiguous().t(), left.t().contiguous().t() @ right]
    batch = _values(device, 3, 33, 64, dtype=dtype)
    return [
        *results,
        torch.bmm(batch, batch.transpose(1, 2)),
        functional.linear(batch, _values(device, 48, 64, dtype=dtype), _values(device, 48, dtype=dtype)),
        batch[0] @ _values(device, 64, dtype=dtype),
    ]


def _convolutions(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    results = []
    shapes = [(3, 16, 3, 1, 1), (16, 32, 3, 2, 1), (8, 8, 1, 1, 1)]
    if device.type == "cpu":  # kernels of a GPU for it need not be deterministic
        shapes.insert(0, (8, 8, 3, 1, 8))
    for channels, filters, size, stride, groups in shapes:
        image = _values(device, 2, channels, 15, 17, dtype=dtype)
        weight = _values(device, filters, channels // groups, size, size, dtype=dtype)
        padding = size // 2
        result = functional.conv2d(image, weight, stride=stride, padding=padding, groups=groups)
        gradients = torch.ops.aten.convolution_backward(
            *(result, image, weight, [filters], [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups),
            [True, True, True],
        )
        results += [result, *gradients]
    sequence = _values(device, 2, 5, 33, dtype=dtype)
    return [
        *results,
        functional.conv_transpose2d(
            _values(device, 1, 8, 7, 9, dtype=dtype), _values(device, 8, 6, 2, 2, dtype=dtype), stride=2
        ),
        functional.conv1d(sequence, _values(device, 7, 5, 3, dtype=dtype)),
    ]


def _recurrent(device: torch.device) -> list[Tensor]:
    weights = [_values(device, *shape) for shape in ((64, 8), (64, 16), (64,), (64,))]
    if device.type == "cuda" and torch.backends.cudnn.is_acceptable(weights[0]):
        # Into one piece of memory, as `nn.LSTM.flatten_parameters` does: torch warns of anything else.
        from torch.backends.cudnn.rnn import get_cudnn_mode  # an attribute hides the module

        torch._cudnn_rnn_flatten_weight(weights, 4, 8, get_cudnn_mode("LSTM"), 16, 0, 1, True, False)
    state = [_values(device, 1, 4, 16)] * 2
    return list(torch.lstm(_values(device, 4, 11, 8), state, weights, True, 1, 0.0, False, False, True))


def _attention(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    heads = _values(device, 2, 4, 33, 16, dtype=dtype)
    return [functional.scaled_dot_product_attention(heads, heads, heads, is_causal=causal) for causal in (False, True)]


def _factorizations(device: torch.device) -> list[Tensor]:
    square = _values(device, 24, 24)
    positive = square @ square.t() + 30 * torch.eye(24, dtype=torch.float32, device=device)
    return [*torch.linalg.qr(square), torch.linalg.cholesky(positive), torch.linalg.solve(positive, square)]


def _transforms(device: torch.device) -> list[Tensor]:
    return [torch.view_as_real(torch.fft.rfft(_values(device, 3, 120))), torch.fft.irfft(_values(device, 3, 33) + 0j)]


def _of_numpy(_device: torch.device) -> list[Tensor]:
    numbers = np.arange(1, 1002, dtype=np.float32) / np.float32(1024)
    matrix = numbers[:992].reshape(31, 32)
    results = [np.exp(numbers), np.log(numbers), np.sin(numbers), np.tanh(numbers), matrix @ matrix.T.copy()]
    results += [np.exp(numbers.astype(np.float64)), numbers.sum(keepdims=True), numbers.mean(keepdims=True)]
    return [torch.from_numpy(np.ascontiguousarray(result)) for result in results]


_ON_CPU: dict[str, Callable[[torch.device], list[Tensor]]] = {
    "ATen": _vectorized,
    "BLAS": lambda device: [*_products(device, torch.float32), *_products(device, torch.float64)],
    "oneDNN": lambda device: [*_convolutions(device, torch.float32), functional.gelu(_values(device, 37, 129))],
    "oneDNN in bf16": lambda device: _products(device, torch.bfloat16),
    RECURRENT: _recurrent,
    "attention": lambda device: _attention(device, torch.float32),
    "LAPACK": _factorizations,
    "FFT": _transforms,
    "numpy": _of_numpy,
}
"""The computations by the library that is meant; which one torch calls is up to the build."""

_ON_GPU: dict[str, Callable[[torch.device], list[Tensor]]] = {
    "ATen": _vectorized,
    "cuBLAS": lambda device: [*_products(device, torch.float32), *_products(device, torch.float16)],
    "attention": lambda device: [*_attention(device, torch.float32), *_attention(device, torch.float16)],
    "cuDNN": lambda device: [
        *_convolutions(device, torch.float32),
        *_convolutions(device, torch.float16),
        *_recurrent(device),
    ],
}
