"""Answers to questions without labels, with a tokenizer and a base that another process restores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from shoestring.base.errors import CheckpointError, DataError, UsageError
from shoestring.training.checkpoint.light import save_light
from shoestring.training.checkpoint.trained import frozen_digest
from shoestring_recipes.chart import Chart, Options
from shoestring_recipes.chart.prediction import answer

OPTIONS = Options(size="tiny", weights="fp32", completion_len=5)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "png").mkdir()
    Image.new("RGB", (30, 20), "red").save(tmp_path / "png" / "a.png")
    (tmp_path / "png" / "bad.png").write_bytes(b"no image")
    Image.new("RGB", (30, 20)).save(tmp_path.parent / f"{tmp_path.name}.png")
    return tmp_path


def outcomes(inputs) -> list[object]:
    """Return the identifier and the size of the image of each input, or its error."""
    results = []
    for question in inputs:
        try:
            error = question.error or str(question.load()["image"].size)
        except (ValueError, DataError) as problem:
            error = str(problem)
        results.append((question.id, error))
    return results


def test_inputs_of_a_folder_a_file_and_a_list(images):
    rows = [
        {"imgname": "a.png", "query": "how many?", "id": "x"},
        {"image": "png/a.png", "question": "how many?"},
        {"imgname": f"../../{images.name}.png", "query": "outside?"},
        {"image": f"../{images.name}.png", "query": "outside?"},
        {"image": "png/bad.png", "query": "unreadable?"},
        {"image": "png/absent.png", "query": "absent?"},
        {"query": " "},
        7,
        {"image": "a\0b", "query": "null?"},
    ]
    (images / "rows.json").write_text(json.dumps(rows))
    lines = images / "rows.jsonl"
    lines.write_text("\n".join([*map(json.dumps, rows), "", "no json"]))
    recipe = Chart(OPTIONS)
    expected = ["(224, 112)", "(224, 112)", "is not in", "is not in", "cannot be read", "there is no image"]
    expected += ["has no image and no query", "is not a JSON object", "null"]
    for source in (images, images / "rows.json", lines):
        inputs = recipe.inputs(source)
        results = outcomes(inputs)
        assert results[0] == ("x", "(224, 112)")
        assert all(part in text for part, (_, text) in zip(expected, results, strict=False))
        assert len(results) == len(rows) + (source == lines)
        if source != lines:
            assert len(inputs) == len(rows)
    assert results[-1][1].startswith("is not JSON")
    assert next(iter(recipe.inputs(images))).value == {"imgname": "a.png", "query": "how many?", "id": "x"}
    picture = Image.new("L", (9, 9))
    in_python = [{"image": picture, "query": "?"}, {"image": images / "png" / "a.png", "question": "?"}, {"image": 7}]
    assert [text for _, text in outcomes(recipe.inputs(in_python))] == ["(224, 112)", "(224, 112)", "has no query"]
    assert len(recipe.inputs(None)) == 576
    (images / "rows.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        recipe.inputs(images)


def test_answer_is_in_the_tags():
    text = "<think>\n<type>bar</type>\nstep\n</think>\n<answer> 3.4 </answer>"
    assert answer(text) == {"prediction": "3.4", "reasoning": "<type>bar</type>\nstep", "text": text}
    assert answer("nothing") == {"prediction": None, "reasoning": None, "text": "nothing"}


def learner(recipe: Chart) -> torch.nn.Module:
    torch.manual_seed(3)
    return recipe.learner()


def train(folder: Path) -> tuple[Chart, torch.nn.Module]:
    """Write the preprocessing and the weights of a policy whose adapters are not zero."""
    recipe = Chart(OPTIONS)
    recipe.data()
    (folder / "preprocessing").mkdir()
    recipe.save_preprocessing(folder / "preprocessing")
    model = learner(recipe)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    save_light(folder / "best", model, {})
    return recipe, model


RESTORE = """
import json, sys
from pathlib import Path
import torch
from shoestring.training.checkpoint.light import load_light
from shoestring.training.checkpoint.trained import frozen_digest
from shoestring_recipes.chart import Chart, Options
folder = Path(sys.argv[1])
recipe = Chart(Options(size="tiny", weights="fp32", completion_len=5, data=folder))
recipe.load_preprocessing(folder / "preprocessing")
torch.manual_seed(3)
model = recipe.learner()
digest = frozen_digest(model)
load_light(folder / "best", model)
batch = recipe.collate([question.load() for question in recipe.inputs(folder)])
print(json.dumps([digest, recipe.predict(model.eval(), batch)]))
"""


@pytest.mark.slow
def test_another_process_predicts_the_same_with_other_data(images):
    recipe, model = train(images)
    (images / "rows.json").write_text(json.dumps([{"imgname": "a.png", "query": f"how many {n}?"} for n in range(3)]))
    batch = recipe.collate([question.load() for question in recipe.inputs(images)])
    expected = recipe.predict(model.eval(), batch)
    script = subprocess.run([sys.executable, "-c", RESTORE, images], capture_output=True, text=True, check=True)
    assert json.loads(script.stdout) == [frozen_digest(model), expected]
    labeled = recipe.collate([recipe.whole()[0]])
    (target,) = recipe.targets(labeled)
    assert target and recipe.targets(batch) == [None] * 3
    assert recipe.predict(model, labeled) == recipe.predict(model, [{**labeled[0], "label": "other"}])


def test_rows_are_identified_by_their_id_or_position(images):
    rows = [{"imgname": "a.png", "query": "?", "label": n} for n in range(10)]
    rows[9]["id"] = "last"
    (images / "rows.json").write_text(json.dumps(rows))
    recipe = Chart(Options(size="tiny", data=images))
    parts, whole = recipe.data(), recipe.whole()
    assert recipe.identify(parts["validation"], 0) == 8 and recipe.identify(parts["test"], 0) == "last"
    assert [recipe.identify(whole, index) for index in range(len(whole))] == [*range(9), "last"]


def test_the_tokenizer_of_random_weights_must_be_known(tmp_path):
    with pytest.raises(UsageError, match="tokenizer of a policy with random weights"):
        Chart(OPTIONS).learner()
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        Chart(OPTIONS).load_preprocessing(tmp_path)


@pytest.mark.slow
def test_whole_weights_and_adapters_of_other_programs(tmp_path):
    recipe, model = train(tmp_path)
    sample = recipe.collate([recipe.whole()[0]])
    expected = recipe.predict(model.eval(), sample)
    base, adapters = tmp_path / "base", tmp_path / "adapters"
    digest = frozen_digest(model)
    model.unload().save_pretrained(base)
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    recipe._tokenizer.save_pretrained(base)
    adapters.mkdir()
    torch.save(load_file(tmp_path / "best" / "adapter_model.safetensors"), adapters / "adapter_model.bin")
    config = json.loads((tmp_path / "best" / "adapter_config.json").read_text())
    (adapters / "adapter_config.json").write_text(json.dumps(config))
    for folder in (adapters, tmp_path / "best"):
        on_base = Chart(Options(**{**vars(OPTIONS), "weights_from": base}))
        assert on_base.predict(on_base.pretrained(folder).eval(), sample) == expected
    alone = Chart(OPTIONS)
    assert frozen_digest(alone.pretrained(base)) == digest
    assert alone.predict(alone.pretrained(base).eval(), sample) != expected
    with pytest.raises(UsageError, match="tokenizer of a policy"):
        Chart(OPTIONS).pretrained(adapters)
    (adapters / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True, "bias": "all"}))
    with pytest.raises(CheckpointError, match="cannot be used") as refused:
        Chart(Options(**{**vars(OPTIONS), "weights_from": base})).pretrained(adapters)
    assert len(refused.value.problems) == 2
