"""The built-in recipes at sizes that train in a second, and what makes their runs on two devices comparable."""

import copy
import json

from tests.integrations.lightning import modules
from tests.recipes.cloud.images import write_triplet
from tests.recipes.vqa.teacher_data import make_row, write_data

_ANSWERS = {"effective_batch": 4, "micro_batch": 2, "max_updates": 3, "seq_len": 96, "answer_tokens": 2, "subset": 16}

RECIPES = {
    "vqa": {"size": "tiny", "effective_batch": 4, "micro_batch": 2, "beams": 2, "q_len": 16, "a_len": 16, "epochs": 2},
    "legal": {"size": "tiny", "subset": 48, "effective_batch": 16, "micro_batch": 8, "epochs": 1},
    "legal crf": {
        "architecture": "hier_bilstm_crf", "size": "tiny", "subset": 16, "effective_batch": 8, "micro_batch": 3,
        "epochs": 2,
    },
    "temporal": {"size": "tiny", "max_updates": 4, "effective_batch": 64, "micro_batch": 32},
    "temporal transformer": {
        "architecture": "transformer", "size": "tiny", "max_updates": 3, "effective_batch": 32, "micro_batch": 16,
    },
    "cloud": {"size": "tiny", "crop": 16, "effective_batch": 2, "micro_batch": 1, "epochs": 2},
    "finetune": _ANSWERS,
    "finetune packed": _ANSWERS | {"packing": "yes", "micro_batch": 1},
    "finetune dpo": _ANSWERS | {"method": "dpo", "learning_rate": 3e-3},
    "finetune all": _ANSWERS | {"lora_r": None},
    "finetune dora": _ANSWERS | {"lora_dora": True, "lora_rslora": True, "lora_dropout": 0.1},
    "lightning": {"epochs": 1},
}  # fmt: skip


def values_of(kind, folder):
    """Return the name of the recipe of `kind` and its values, with small data in `folder`."""
    name, values = kind.split()[0], dict(RECIPES[kind])
    folder.mkdir(parents=True)
    if name == "lightning":
        return f"{modules.__file__}:Classifier", values
    if name == "vqa":
        write_data(folder / "texts", [make_row(number, reasoning_weight=1.0 + number % 4) for number in range(10)])
        values["data"] = str(folder / "texts")
    elif name == "cloud":
        rows = [f"{split},{write_triplet(folder, f'{n}.tif', n, side=16)}" for n, split in enumerate("11123")]
        (folder / "data.csv").write_text("\n".join(rows))
        values["data"] = str(folder)
    elif name == "finetune":
        prompts = folder / "prompts.jsonl"
        prompts.write_text(json.dumps({"prompt": "Say yes."}))
        values["prompts"] = str(prompts)
    return name, values


class Observed:
    """A recipe that appends each loss of training to `losses`, and whose model has no dropout unless it `drops`.

    A GPU draws other random numbers than the CPU, so losses can be compared only without them.
    """

    def __init__(self, recipe, losses, *, drops=False):
        self._recipe, self._losses, self._drops = recipe, losses, drops

    def __getattr__(self, name):
        return getattr(self._recipe, name)

    def __copy__(self):
        return copy.copy(self._recipe)  # for the comparison with halves, whose losses are not those of updates

    def model(self):
        model = self._recipe.model()
        return model if self._drops else without_dropout(model)

    def loss(self, model, batch, **stage):
        loss = self._recipe.loss(model, batch, **stage)
        total, weight = loss if isinstance(loss, tuple) else (loss, 1)
        if model.training:
            self._losses.append(float(total.detach()) / float(weight))
        return loss


def without_dropout(model):
    """Return the model with each share of dropped values set to 0."""
    for module in model.modules():
        for name in ("p", "dropout", "drop_path", "dropout_rate", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model
