"""Norms with running statistics are recognized with torch's private base classes and without them."""

import runpy
from typing import Any

import pytest
from torch import nn
from torch.nn.modules import batchnorm

from shoestring.techniques import norms

Classes = dict[str, Any]


@pytest.fixture(params=["private bases", "public classes"])
def classes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Classes:
    if request.param == "public classes":
        monkeypatch.delattr(batchnorm, "_BatchNorm")
        monkeypatch.delattr(batchnorm, "_NormBase")
    return runpy.run_path(str(norms.__file__))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_batch_norms_are_in_both_classes(kind: Any, classes: Classes) -> None:
    assert isinstance(kind(2), classes["BATCH"]) and isinstance(kind(2), classes["RUNNING"])


@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
def test_instance_norms_only_have_running_statistics(kind: Any, classes: Classes) -> None:
    assert isinstance(kind(2), classes["RUNNING"]) and not isinstance(kind(2), classes["BATCH"])


@pytest.mark.parametrize("module", [nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.Linear(2, 2)])
def test_other_modules_have_no_running_statistics(module: nn.Module, classes: Classes) -> None:
    assert not isinstance(module, classes["RUNNING"]) and not isinstance(module, classes["BATCH"])


def test_classes_derived_from_torchs_base_are_recognized() -> None:
    class DerivedNorm(batchnorm._BatchNorm):
        pass

    assert isinstance(DerivedNorm(2), norms.BATCH) and isinstance(DerivedNorm(2), norms.RUNNING)
