"""Models whose files have 4-bit weights of bitsandbytes are those whose weights are packed when they are moved."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.planning.trace import host_memory
from shoestring.recipe.finding import choose
from shoestring.techniques import adapt, nf4
from shoestring.techniques.streaming import placement
from shoestring_recipes.finetune import building, merging
from shoestring_recipes.finetune.tiny import train_tokenizer
from tests.recipes.finetune import models
from tests.slow import slow_except

pytest.importorskip("bitsandbytes")
transformers = pytest.importorskip("transformers")
LAYERS = 2 * 7
VALUES: dict[str, Any] = {"quantization": "nf4", "weights": "bf16", "lora_r": 2, "unquantized": "own"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model in bf16, and the same packed and saved by transformers, with the scales in fp32 and in 8 bits."""
    root = tmp_path_factory.mktemp("models")
    named = {"original": root / "original", "packed": root / "packed", "double": root / "double"}
    models.build("qwen2", torch.bfloat16).save_pretrained(named["original"])
    for name in ("packed", "double"):
        quantization = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_use_double_quant=name == "double",
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(
            named["original"], quantization_config=quantization, dtype=torch.bfloat16, device_map={"": "cpu"}
        )
        model.save_pretrained(named[name])
    for folder in named.values():
        train_tokenizer(["What is a text?"]).save_pretrained(folder)
    return named


def trained(folder: Path, *, double: bool = False, streamed: int = 0, **values: Any) -> Any:
    options = {**VALUES, "double_quantization": double, **values, "model": str(folder), "streamed_blocks": streamed}
    loaded, settings = choose("finetune", options)
    torch.manual_seed(0)  # of the adapters
    model = adapt.trained_model(loaded.recipe.model(), loaded.adaptation, settings, keeps_stored_type=True)
    placement.move(model, loaded.parts, settings, torch.device("cpu"))
    return model


def bits(model: torch.nn.Module) -> dict[str, Any]:
    return {
        name: (value.dtype, value.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, value in model.state_dict().items()
    }


def loss_of(model: Any) -> torch.Tensor:
    tokens = torch.arange(40).reshape(2, 20)
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss.detach()


@pytest.mark.parametrize("name", slow_except(["packed", "double"], "double"))
def test_same_bits_as_packed_here(folders: dict[str, Path], name: str) -> None:
    own = trained(folders["original"], double=name == "double")
    expected = bits(own)
    for streamed in (0, 2):
        model = trained(folders[name], streamed=streamed)
        assert bits(model) == expected
        assert [type(module) for module in model.modules()] == [type(module) for module in own.modules()]
        assert torch.equal(loss_of(model), loss_of(own))


def test_the_type_of_computation_is_that_of_the_option(folders: dict[str, Path]) -> None:
    model = trained(folders["packed"], weights="fp32")
    layers = [module for module in model.modules() if hasattr(module, "compute_dtype")]
    assert len(layers) == LAYERS and {layer.compute_dtype for layer in layers} == {torch.float32}
    assert {layer.weight.quant_state.dtype for layer in layers} == {torch.float32}


def test_merged_weights_are_those_of_a_model_that_is_packed_here(folders: dict[str, Path], tmp_path: Path) -> None:
    merged = [merging.merge(trained(folders[name], double=True)) for name in ("original", "double")]
    assert bits(merged[1]) == bits(merged[0])
    merged[1].save_pretrained(tmp_path)
    assert "quantization_config" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("reference", ["finetune", "hf:"])
def test_a_plan_has_the_packed_weights(folders: dict[str, Path], reference: str) -> None:
    folder = folders["double"]
    values = {**VALUES, "model": str(folder)} if reference == "finetune" else VALUES
    loaded, _ = choose(reference if reference == "finetune" else f"hf:{folder}", values)
    with torch.device("meta"):
        planned = adapt.planned_model(loaded)
    layers = [module for module in planned.modules() if isinstance(module, nf4.Nf4Linear)]
    assert len(layers) == LAYERS and all(layer.is_packed_in_files and "offset" in layer._buffers for layer in layers)
    assert any("have 14 layers in 4 bits, with scales in 8 bits" in note for note in adapt.notes(planned, loaded))
    model = trained(folder)
    sizes = [{name: weight.nbytes for name, weight in each.named_parameters()} for each in (planned, model)]
    assert reference != "finetune" or sizes[0] == sizes[1]
    adapters = sum(weight.nbytes for weight in planned.parameters() if weight.requires_grad)
    loading = host_memory.loading_bytes(planned, loaded, Settings(), is_pretrained=True)
    assert reference != "finetune" or loading == adapters  # everything else is in the files


def test_other_options_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"packed in 4 bits, nf4 with scales in 8 bits \(double") as error:
        trained(folders["double"], quantization="none")
    assert "--set quantization=nf4" in error.value.hint


@pytest.mark.parametrize(
    ("changes", "described"),
    [
        ({"load_in_4bit": False, "load_in_8bit": True}, "bitsandbytes, 8 bits"),
        ({"bnb_4bit_quant_type": "fp4"}, "bitsandbytes, fp4"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bitsandbytes, nf4 stored as bfloat16"),
        ({"quant_method": "awq"}, "awq"),
    ],
    ids=str,
)
def test_weights_that_are_packed_otherwise_are_refused(
    folders: dict[str, Path], tmp_path: Path, changes: dict[str, Any], described: str
) -> None:
    content = json.loads((folders["packed"] / "config.json").read_text())
    content["quantization_config"] |= changes
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=f"quantized already \\({described}\\)"):
        building.read_configuration(building.Source(label="model=packed", folder=tmp_path))
