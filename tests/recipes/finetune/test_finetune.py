"""The recipe as a whole: where it is found, what it refuses, and what it shows."""

import json
from pathlib import Path

import pytest
import torch

from shoestring.base.errors import DataError, UsageError
from shoestring.recipe.finding import choose
from shoestring_recipes.finetune import building, tiny
from tests.recipes.finetune import models


def test_a_hugging_face_model_with_data_is_this_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    models.build("llama").config.save_pretrained(folder)
    for reference in (f"hf:{folder}", f"hf:{folder / 'config.json'}"):
        loaded, _ = choose(reference, {"data": str(tmp_path / "chats.jsonl")})
        assert (loaded.name, loaded.options["model"]) == ("finetune", folder)
    assert choose(f"hf:{folder}", {})[0].name == f"hf:{folder}"


def test_weights_that_another_tool_has_quantized_are_refused(tmp_path: Path) -> None:
    config = models.build("llama").config
    config.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"its weights are quantized already \(gptq\)") as error:
        building.read_configuration(building.Source(label="model=gptq", folder=tmp_path))
    assert "the original model" in error.value.hint


def test_defaults() -> None:
    options = choose("finetune", {})[0].options
    assert {name: options[name] for name in ("lora_r", "lora_targets", "weights", "quantization")} == {
        "lora_r": 16,
        "lora_targets": "linear",
        "weights": "auto",
        "quantization": "none",
    }


def test_preview_shows_a_sample() -> None:
    text = choose("finetune", {})[0].recipe.preview()
    assert "⟦" in text and "<|im_end|>⟧" in text and "tokens of a row" in text


def test_data_that_does_not_teach_to_stop_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    row = {"messages": [{"role": "user", "content": "word " * 30}, {"role": "assistant", "content": "word " * 30}]}
    data.write_text("\n".join(json.dumps(row) for _ in range(4)))
    with pytest.raises(DataError, match="training on this data would be futile") as error:
        choose("finetune", {"data": str(data), "seq_len": 40, "validation": 0})[0].data()
    assert error.value.problems


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(UsageError, match="seq_len=4096 is more than the 2048 positions"):
        choose("finetune", {"seq_len": 4096})[0].data()


def test_the_run_stores_what_its_rows_need(tmp_path: Path) -> None:
    trained, _ = choose("finetune", {})
    trained.recipe.save_preprocessing(tmp_path)
    loaded, _ = choose("finetune", {})
    loaded.recipe.load_preprocessing(tmp_path)
    samples = [recipe.data()["train"][3].tokens.tolist() for recipe in (trained.recipe, loaded.recipe)]
    assert samples[0] == samples[1]
    torch.manual_seed(0)
    shapes = {name: weight.shape for name, weight in loaded.recipe.skeleton().state_dict().items()}
    assert shapes == {name: weight.shape for name, weight in trained.recipe.model().state_dict().items()}


def test_refused_data_is_shown(tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    row = {"messages": [{"role": "user", "content": "word " * 5}, {"role": "assistant", "content": "word " * 60}]}
    data.write_text("\n".join(json.dumps(row) for _ in range(4)))
    loaded, _ = choose("finetune", {"data": str(data), "seq_len": 40, "validation": 0})
    assert "refused: the stop token is never learned" in loaded.recipe.preview()
    with pytest.raises(DataError):
        loaded.data()


def test_rows_that_the_template_cannot_write_are_refused_or_skipped(tmp_path: Path) -> None:
    template = tmp_path / "strict.jinja"
    template.write_text(
        "{% if 'no' in messages[0].content %}{{ raise_exception('no') }}{% endif %}" + tiny.CHAT_TEMPLATE
    )
    data = tmp_path / "chats.jsonl"
    rows = [[{"role": "user", "content": text}, {"role": "assistant", "content": "a"}] for text in ("no", "b", "c")]
    data.write_text("\n".join(json.dumps({"messages": messages}) for messages in rows))
    options = {"data": str(data), "template": str(template), "validation": 0}
    with pytest.raises(DataError, match="the chat template rejects 1 of 3 rows") as caught:
        choose("finetune", options)[0].data()
    assert "on_bad_rows=skip" in str(caught.value.hint)
    loaded, _ = choose("finetune", {**options, "on_bad_rows": "skip"})
    assert len(loaded.data()["train"]) == 2
    reason = "chats.jsonl, line 1: the chat template cannot write it: no"
    assert [note for note in loaded.recipe.notes() if reason in note and "1 of 3 rows cannot be used" in note]
    assert f"note: 1 of 3 rows cannot be used and were skipped (on_bad_rows=skip): {reason}" in loaded.recipe.preview()
    data.write_text(json.dumps({"messages": rows[0]}))
    with pytest.raises(DataError, match="1 of 1 rows cannot be used: nothing is left"):
        choose("finetune", {**options, "on_bad_rows": "skip"})[0].data()
