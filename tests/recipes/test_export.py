"""Exports of the recipes, loaded by the other library in a process that cannot import Shoestring."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers

import shoestring
from shoestring.recipe.finding import choose
from tests.recipes.untrained import save_untrained

LOAD = """
import json, os, sys
import torch
import transformers
sys.modules["shoestring"] = None

def run_card(folder):
    os.chdir(folder)
    card = open("README.md", encoding="utf-8").read()
    names = {}
    exec(compile(card.split("```python")[1].split("```")[0], folder, "exec"), names)
    return names

def largest(outputs, expected):
    return float((outputs - torch.tensor(expected)).abs().max())

legal, vqa, chart, temporal = (json.loads(line) for line in sys.stdin)
differences = {}
with torch.no_grad():
    names = run_card(legal["folder"])
    tokens = [1, *names["tokenize"](legal["before"]), 2, *names["tokenize"](legal["sentence"]), 2]
    logits = names["model"](input_ids=torch.tensor([tokens])).logits
    differences["legal"] = largest(logits, legal["logits"])
    differences["labels"] = list(names["model"].config.id2label.values()) != legal["labels"]

    names = run_card(vqa["folder"])
    differences["questions"] = names["words"](vqa["texts"])["input_ids"] != vqa["tokens"]
    differences["texts"] = names["texts"](vqa["texts"], add_special_tokens=False)["input_ids"] != vqa["text_tokens"]
    differences["answers"] = [names["texts"].decode(tokens) for tokens in vqa["text_tokens"]] != vqa["texts"]
    from PIL import Image
    image = Image.frombytes("L", vqa["image_size"], bytes(vqa["image"]))
    pixels = names["images"](images=[image.convert("RGB")], return_tensors="pt")["pixel_values"]
    differences["pixels"] = largest(pixels, vqa["pixels"])
    differences["generation"] = names["answer"](image, vqa["texts"][0]) != vqa["answer"]
    differences["vision"] = largest(names["vision"](pixel_values=pixels).last_hidden_state, vqa["features"])

    names = run_card(chart["folder"])
    inputs = {name: torch.tensor(value) for name, value in chart["inputs"].items()}
    differences["instruction"] = names["messages"][0]["content"] != chart["instruction"]
    differences["merged"] = largest(names["model"](**inputs).logits[0, -1], chart["logits"])
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText
    base = AutoModelForImageTextToText.from_pretrained("adapter/base")
    adapted = PeftModel.from_pretrained(base, "adapter").eval()
    differences["adapter"] = largest(adapted(**inputs).logits[0, -1], chart["logits"])

    names = run_card(temporal["folder"])
    features = torch.tensor(temporal["features"]).numpy()
    (logits,) = names["session"].run(None, {"features": features})
    differences["temporal"] = largest(torch.from_numpy(logits), temporal["logits"])
print(json.dumps(differences))
"""


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def export_folder(run: Path, to: str) -> str:
    exported = shoestring.export(run, to=to)
    private = [str(path).encode() for path in (run.parent, Path(__file__).parents[2], Path(torch.__file__).parents[1])]
    for path in Path(exported.path).rglob("*"):
        if path.is_file():
            assert not any(text in path.read_bytes() for text in private), f"{path} has a path of this machine"
    return exported.path


def legal_case(run: Path) -> dict:
    from shoestring_recipes.legal.classifier import SIZES
    from shoestring_recipes.legal.roles import SETS
    from shoestring_recipes.legal.tokens import HashedWords

    model = save_untrained(run, "legal", size="tiny")
    before, sentence = "Filed on 12.03.1954, in Ayodhyā.", "The Court's order — was SET aside."
    first, second = HashedWords(SIZES["tiny"]["vocab_size"]).encode([before, sentence])
    tokens = torch.tensor([[1, *first, 2, *second, 2]])
    return {
        "folder": export_folder(run, "huggingface"),
        "before": before,
        "sentence": sentence,
        "logits": model(tokens, torch.ones_like(tokens)).tolist(),
        "labels": list(SETS["legalseg"]),
    }


def vqa_case(run: Path) -> dict:
    from shoestring_recipes.vqa.digits import load_image, make_samples
    from shoestring_recipes.vqa.images import to_tensor
    from shoestring_recipes.vqa.texts import BEGIN
    from shoestring_recipes.vqa.tokens import build_question_tokenizer, build_text_tokenizer

    model = save_untrained(run, "vqa", size="tiny")
    texts = ["Trong hình là số mấy?", "<answer>Số 3</answer>\n<reasoning>[CAUSAL] vì Ổ|(.*)^$-~</reasoning>"]
    questions = build_question_tokenizer()
    image = load_image(make_samples()[0]).convert("L")
    pixels = to_tensor(image, 16)[None]
    question = torch.tensor([[questions.begin, *questions.encode(texts[0]), questions.end]])
    answers = build_text_tokenizer()
    context = model.encode(pixels, question, torch.ones_like(question))
    (tokens,) = model.generate(context, answers.encode(BEGIN), beams=4, max_length=48)
    return {
        # Random weights also generate tokens that are not in the vocabulary.
        "answer": answers.decode(tokens).replace("\N{REPLACEMENT CHARACTER}", ""),
        "folder": export_folder(run, "huggingface"),
        "texts": texts,
        "tokens": [[questions.begin, *questions.encode(text), questions.end] for text in texts],
        "text_tokens": [build_text_tokenizer().encode(text) for text in texts],
        "image": list(image.tobytes()),
        "image_size": image.size,
        "pixels": pixels.tolist(),
        "features": model.vision(pixel_values=pixels).last_hidden_state.tolist(),
    }


def chart_case(run: Path) -> dict:
    from shoestring_recipes.chart.building import reader
    from shoestring_recipes.chart.export import encode

    model = save_untrained(run, "chart", size="tiny", weights="fp32")
    recipe = choose("chart", {"size": "tiny"})[0].recipe
    charts = recipe.data()["test"]
    inputs = encode(reader(recipe.options, recipe.data()["train"]), [charts[0]])
    return {
        "folder": export_folder(run, "huggingface"),
        "inputs": {name: value.tolist() for name, value in inputs.items()},
        "instruction": charts[0]["prompt"][0]["content"],
        "logits": model(**inputs).logits[0, -1].tolist(),
    }


def temporal_case(run: Path) -> dict:
    model = save_untrained(run, "temporal", size="tiny", architecture="mlp")
    features = torch.randn(5, 20, 29)
    return {
        "folder": export_folder(run, "onnx"),
        "features": features.tolist(),
        "logits": model(features).tolist(),
    }


@pytest.mark.skipif(
    "torchvision" in getattr(transformers.AutoImageProcessor, "_backends", ()) and find_spec("torchvision") is None,
    reason="AutoImageProcessor of transformers 5.15 needs torchvision, which Colab's image has and our stacks have not",
)
def test_exports_are_loaded_without_shoestring(tmp_path):
    makers = {"legal": legal_case, "vqa": vqa_case, "chart": chart_case, "temporal": temporal_case}
    cases = [make(tmp_path / name) for name, make in makers.items()]
    process = subprocess.run(
        [sys.executable, "-c", LOAD], input="\n".join(map(json.dumps, cases)), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    differences = json.loads(process.stdout.splitlines()[-1])
    assert len(differences) == 12
    assert {name: value for name, value in differences.items() if value > 1e-4} == {}


def test_the_adapter_needs_its_base(tmp_path):
    """A pretrained base is named, not copied, and its path is not told."""
    shoestring_run = tmp_path / "run"
    model = save_untrained(tmp_path / "random", "chart", size="tiny", weights="fp32")
    folder = tmp_path / "someone" / "Qwen-tiny"
    exported = shoestring.export(tmp_path / "random", to="merged", out=folder)
    assert exported.max_difference < 1e-4
    del model
    save_untrained(shoestring_run, "chart", size="tiny", weights="fp32", weights_from=str(folder))
    exported = shoestring.export(shoestring_run, to="adapter")
    assert not any(name.startswith("base/") for name in exported.files)
    configuration = json.loads((Path(exported.path) / "adapter_config.json").read_text())
    assert configuration["base_model_name_or_path"] == "Qwen-tiny"
    card = (Path(exported.path) / "README.md").read_text()
    assert "someone" not in card and re.search(r'from_pretrained\("Qwen-tiny"\)', card)
    quantized, _ = choose("chart", {"size": "tiny", "quantization": "nf4"})
    assert set(quantized.parts.use.exports) == {"adapter"}
