"""The results of fixed computations show whether a library has other kernels."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from shoestring.training.engine import kernel_probe

CPU = torch.device("cpu")
CODE = """
import json, torch
from shoestring.training.engine.kernel_probe import digests
print(json.dumps(digests(torch.device("cpu"), has_convolutions=True)))
"""


def test_probe_changes_nothing_and_is_repeatable():
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    modes = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())
    results = kernel_probe.digests(CPU, has_convolutions=True)
    kernel_probe._digests.cache_clear()
    torch.set_default_dtype(torch.float64)  # as a recipe may
    try:
        assert kernel_probe.digests(CPU, has_convolutions=True) == results
    finally:
        torch.set_default_dtype(modes[2])
    assert len(results) == 9
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert modes == (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="variables of MKL and of x86 processors")
@pytest.mark.parametrize(
    ("variable", "value", "changed", "unchanged"),
    [
        # On some processors torch's own kernels call vector functions of MKL.
        ("MKL_CBWR", "COMPATIBLE", {"BLAS", "LAPACK"}, set()),
        ("ONEDNN_MAX_CPU_ISA", "SSE41", {"oneDNN"}, {"ATen", "BLAS"}),
    ],
)
def test_variables_that_change_kernels_change_the_results_of_their_library(variable, value, changed, unchanged):
    here = kernel_probe.digests(CPU, has_convolutions=True)
    variables = {variable: value, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    answer = subprocess.run([sys.executable, "-c", CODE], env=os.environ | variables, capture_output=True, check=True)
    other = json.loads(answer.stdout)
    differing = {name for name in here if here[name] != other[name]}
    assert differing >= changed and not differing & unchanged


def test_layers_that_cudnn_computes_are_recognized():
    layers = (torch.nn.Conv1d(1, 1, 1), torch.nn.LSTM(1, 1), torch.nn.Linear(1, 1))
    assert [kernel_probe.has_convolutions(torch.nn.Sequential(layer)) for layer in layers] == [True, True, False]
