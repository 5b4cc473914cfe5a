"""Pretrained models in folders and, by name, in the hub's cache, for every recipe that takes them; also in `.bin`."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, BlipVisionConfig, BlipVisionModel

from shoestring.api import estimate
from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import pretrained
from shoestring.recipe.finding import choose
from shoestring_recipes import chart, legal, vqa
from shoestring_recipes.chart import building
from shoestring_recipes.vqa.parts import PARTS
from tests.recipes.legal.test_encoder import save_bert_tokenizer
from tests.training.checkpoint.test_foreign import Malicious

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "appeal", "."]
NAME = "owner/tiny"


def write_bert(folder: Path) -> None:
    config = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(**config, intermediate_size=16)).save_pretrained(folder)
    save_bert_tokenizer(folder, WORDS)


def write_blip(folder: Path) -> None:
    BlipVisionModel(BlipVisionConfig(**PARTS["vision"].sizes["tiny"])).save_pretrained(folder)


def write_qwen(folder: Path) -> None:
    recipe = chart.Chart(chart.Options(size="tiny", weights="fp32"))
    for part in building.build_policy(recipe.options, recipe.data()["train"]):
        part.save_pretrained(folder)


def make_legal(source: Any, **options: Any) -> Any:
    return legal.Legal(legal.Options(encoder=str(source), **options))


def make_vqa(source: Any, **options: Any) -> Any:
    return vqa.VQA(vqa.Options(size="tiny", vision_from=str(source), **options))


def make_chart(source: Any, **options: Any) -> Any:
    return chart.Chart(chart.Options(size="tiny", weights="fp32", weights_from=source, **options))


RECIPES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], str]] = {
    "legal": (make_legal, lambda recipe: recipe.model().encoder.embeddings.word_embeddings.weight, "word_embeddings"),
    "vqa": (make_vqa, lambda recipe: recipe.model().vision.embeddings.class_embedding, "class_embedding"),
    "chart": (
        make_chart,
        lambda recipe: recipe.learner().get_base_model().model.language_model.embed_tokens.weight,
        "embed_tokens",
    ),
}
"""By recipe: from a source to the recipe, from the recipe to a weight, and the end of that weight's name."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(7)
    for name, write in (("legal", write_bert), ("vqa", write_blip), ("chart", write_qwen)):
        write(root / name)
    return {name: root / name for name in RECIPES}


def copy_as_bin(folder: Path, target: Path, *, content: Any = None, is_zip: bool = True) -> Path:
    """Copy a folder with its weights as `pytorch_model.bin`, as its authors wrote it; or with another `content`."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = load_file(folder / "model.safetensors") if content is None else content
    torch.save(weights, target / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    return target


def weight(folder: Path, name: str) -> torch.Tensor:
    (tensor,) = (
        value
        for key, value in load_file(folder / "model.safetensors").items()
        if f".{name}" in key and "bias" not in key
    )
    return tensor


def plan(recipe: Any) -> None:
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in recipe.model().parameters() if parameter.requires_grad)


@pytest.mark.parametrize("name", RECIPES)
def test_bin_is_found_by_a_plan_and_by_training(name, folders, tmp_path):
    make, get_weight, tensor_name = RECIPES[name]
    for is_zip in (True, False):
        recipe = make(copy_as_bin(folders[name], tmp_path / str(is_zip), is_zip=is_zip))
        plan(recipe)
        assert torch.equal(get_weight(recipe), weight(folders[name], tensor_name))
        assert not any("no complete weights" in note for note in recipe.notes())
    evidence = tmp_path / "executed"
    for is_zip in (True, False):
        content = {"embeddings": Malicious(evidence)}
        recipe = make(copy_as_bin(folders[name], tmp_path / f"bad-{is_zip}", content=content, is_zip=is_zip))
        for use in (plan, get_weight):
            with pytest.raises(UsageError, match=r"cannot be read: .*posix\.mkdir"):
                use(recipe)
    assert not evidence.exists()


def test_an_estimate_says_that_the_weights_are_missing(folders, tmp_path):
    folder = copy_as_bin(folders["legal"], tmp_path / "bert")
    (folder / "pytorch_model.bin").unlink()
    facts = estimate(make_legal(folder), on="t4", micro_batch=2, precision="fp32").facts
    assert any("no complete weights" in note and "training will refuse" in note for note in facts.notes)


def cache(root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a cache of the hub in `root` that has the files of a folder as `NAME`."""
    snapshot = root / f"models--{NAME.replace('/', '--')}" / "snapshots" / "abc"
    blobs = root / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(folder, blobs)
    for file in blobs.rglob("*"):
        (snapshot / file.name).symlink_to(os.path.relpath(file, snapshot))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    return snapshot


@pytest.mark.parametrize("name", RECIPES)
def test_a_name_in_the_cache_is_loaded_and_never_downloaded(name, folders, tmp_path, monkeypatch):
    make, get_weight, tensor_name = RECIPES[name]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    for use in (plan, get_weight):
        with pytest.raises(UsageError, match=f"{NAME}.* cannot be read") as refused:
            use(make(NAME))
        assert "download=true" in refused.value.hint
    cache(tmp_path / "cache", copy_as_bin(folders[name], tmp_path / "bin"), monkeypatch)
    monkeypatch.setattr(transformers.modeling_utils, "auto_conversion", lambda *_, **__: pytest.fail("converted"))
    recipe = make(NAME)
    plan(recipe)
    assert torch.equal(get_weight(recipe), weight(folders[name], tensor_name))


@pytest.mark.parametrize("name", RECIPES)
def test_only_download_allows_the_network(name, folders, tmp_path, monkeypatch):
    make, get_weight, tensor_name = RECIPES[name]
    complete = copy_as_bin(folders[name], tmp_path / "complete")
    snapshot = cache(tmp_path / "cache", complete, monkeypatch)
    (snapshot / "pytorch_model.bin").unlink()
    calls = []

    def download(repository: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        calls.append((allow_patterns[0], local_files_only))
        if "pytorch_model*.bin" in allow_patterns and not local_files_only:
            shutil.copyfile(complete / "pytorch_model.bin", snapshot / "pytorch_model.bin")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda _: ["config.json", "tf_model.h5"])
    with pytest.raises(UsageError, match=r"it has none of model\.safetensors"):
        plan(make(NAME, download=True))
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda _: ["config.json", "pytorch_model.bin"])
    plan(make(NAME, download=True))
    assert {pattern for pattern, _ in calls} == {"*.json"} and not any(is_local for _, is_local in calls)
    assert any("training downloads the weights" in note for note in make(NAME, download=True).notes())
    calls.clear()
    with pytest.raises(UsageError, match="0 files of weights"):
        get_weight(make(NAME))
    assert calls and all(is_local for _, is_local in calls)
    calls.clear()
    assert torch.equal(get_weight(make(NAME, download=True)), weight(folders[name], tensor_name))
    assert ("pytorch_model*.bin", False) in calls and not any(is_local for _, is_local in calls)


def test_a_folder_of_chart_is_a_path_and_a_name_is_not(folders, monkeypatch):
    monkeypatch.chdir(folders["chart"].parent)
    loaded, _ = choose("chart", {"weights_from": "chart", "size": "tiny"})
    assert loaded.paths == {"weights_from": folders["chart"]}
    loaded, _ = choose("chart", {"weights_from": "Qwen/Qwen2.5-VL-3B-Instruct"})
    assert loaded.paths == {} and loaded.options["weights_from"] == "Qwen/Qwen2.5-VL-3B-Instruct"


def test_files_that_cannot_be_downloaded_have_another_hint(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for download, hint in ((True, "where the hub can be reached"), (False, "with download=true")):
        with pytest.raises(UsageError, match="m=a/b cannot be") as error, pretrained.reading("m=a/b"):
            pretrained.find("a/b", download=download)
        assert hint in error.value.hint
