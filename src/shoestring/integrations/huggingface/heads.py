"""The model class of a configuration: the one that it names, that of a task, or the one that is usually trained."""

from __future__ import annotations

from typing import Any

import transformers

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.library_errors import OWN_RECIPE

TASKS: dict[str, tuple[str, ...]] = {
    "seq2seq": ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"),
    "masked-lm": ("AutoModelForMaskedLM",),
    "image-text-to-text": ("AutoModelForImageTextToText",),
    "causal-lm": ("AutoModelForCausalLM",),
    "object-detection": ("AutoModelForObjectDetection",),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation",),
    "mask-generation": ("AutoModelForMaskGeneration",),
    "ctc": ("AutoModelForCTC",),
    "zero-shot-image-classification": ("AutoModelForZeroShotImageClassification",),
    "image-classification": ("AutoModelForImageClassification",),
    "audio-classification": ("AutoModelForAudioClassification",),
    "text-classification": ("AutoModelForSequenceClassification",),
    "token-classification": ("AutoModelForTokenClassification",),
    "question-answering": ("AutoModelForQuestionAnswering",),
    "feature-extraction": ("AutoModel",),
}
"""transformers' tables of model classes by task. Without `architectures` the first that has the configuration is used:
what a model is pretrained for comes before what it is fine-tuned for."""


def find_model_class(configuration: Any, head: str | None = None) -> Any:
    """Return the class of `head` (a task or the name of a class), or by default the one in `architectures`.

    Where a configuration names no class that transformers has, it is the first of `TASKS`. Raises UsageError for a head
    that the model does not have.
    """
    if head is not None:
        return _find_head(configuration, head)
    model_class = declared_class(configuration) or next(iter(_complete_classes(configuration).values()), None)
    if model_class is None:
        raise UsageError(
            f"{configuration.model_type} has no model class that hf: can train",
            hint=f"set head= to the name of its class in transformers, or {OWN_RECIPE}",
        )
    return model_class


def declared_class(configuration: Any) -> Any:
    """Return the first class in `architectures` that transformers has, or None."""
    names = getattr(configuration, "architectures", None)
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and (model_class := _class_named(name)):
            return model_class
    return None


def class_note(configuration: Any, head: str | None, model_class: Any) -> list[str]:
    """Return a note where the class was not declared, but chosen."""
    if head is not None or declared_class(configuration):
        return []
    tasks = ", ".join(task for task, other in _classes(configuration).items() if other is not model_class)
    return [
        f"the configuration names no class of transformers in `architectures`: the model is {model_class.__name__}"
        + (f"; head= chooses another one: {tasks}" if tasks else "")
    ]


def _class_named(name: str) -> Any:
    try:
        model_class = getattr(transformers, name, None)
    except Exception:  # noqa: BLE001  (importing a model's module may fail in any way: a package is missing)
        return None
    is_model = isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
    return model_class if is_model and model_class is not transformers.PreTrainedModel else None


def _classes(configuration: Any) -> dict[str, Any]:
    """Return the model classes of a configuration by task, in the order of `TASKS`."""
    classes: dict[str, Any] = {}
    for task, tables in TASKS.items():
        for table in tables:
            model_class = getattr(transformers, table)._model_mapping.get(type(configuration), None)
            if model_class is not None:
                classes.setdefault(task, model_class[0] if isinstance(model_class, tuple) else model_class)
    return classes


def _complete_classes(configuration: Any) -> dict[str, Any]:
    """Return the classes for which the configuration has all sizes: one of audio may have no vocabulary for CTC."""
    classes = _classes(configuration)
    if getattr(configuration, "vocab_size", 0) is None:
        classes.pop("ctc", None)
    return classes


def _find_head(configuration: Any, head: str) -> Any:
    classes = _classes(configuration)
    if head == "ctc" and head not in _complete_classes(configuration) and head in classes:
        raise UsageError(
            f"head=ctc: the configuration of {configuration.model_type} has no vocabulary (vocab_size)",
            hint='write the number of recognized characters into a copy of its file, such as "vocab_size": 32',
        )
    if head in classes:
        return classes[head]
    model_class = _class_named(head)
    if model_class is not None and isinstance(configuration, model_class.config_class or ()):
        return model_class
    raise UsageError(
        f"head={head}: {configuration.model_type} has no such head",
        hint=f"use the name of one of its classes in transformers, or one of {', '.join(classes) or 'no task'}",
    )
