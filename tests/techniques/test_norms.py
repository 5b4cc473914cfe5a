"""What keeps running statistics is known with torch's own base classes and without them."""

import runpy
from typing import Any

import pytest
from torch import nn
from torch.nn.modules import batchnorm

from shoestring.techniques import norms

Known = dict[str, Any]


@pytest.fixture(params=["bases", "classes"])
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Known:
    if request.param == "classes":
        monkeypatch.delattr(batchnorm, "_BatchNorm")
        monkeypatch.delattr(batchnorm, "_NormBase")
    return runpy.run_path(str(norms.__file__))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_batch_norms_are_both(kind: Any, known: Known) -> None:
    assert isinstance(kind(2), known["BATCH"]) and isinstance(kind(2), known["RUNNING"])


@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
def test_instance_norms_keep_statistics_over_no_samples(kind: Any, known: Known) -> None:
    assert isinstance(kind(2), known["RUNNING"]) and not isinstance(kind(2), known["BATCH"])


@pytest.mark.parametrize("module", [nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.Linear(2, 2)])
def test_others_keep_none(module: nn.Module, known: Known) -> None:
    assert not isinstance(module, known["RUNNING"]) and not isinstance(module, known["BATCH"])


def test_other_libraries_that_derive_from_torchs_bases_are_known() -> None:
    class Theirs(batchnorm._BatchNorm):
        pass

    assert isinstance(Theirs(2), norms.BATCH) and isinstance(Theirs(2), norms.RUNNING)
