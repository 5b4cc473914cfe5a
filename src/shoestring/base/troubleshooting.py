"""Where the documentation explains an error: the headings of `docs/guides/troubleshooting.md` by the messages.

A message without a row here has no heading, and nothing is printed.
"""

import re

PAGE = "docs/guides/troubleshooting.md"

HEADINGS = {
    # Installing
    "this torch cannot use the GPU": r"but this torch \(.*\) cannot use it",
    "the NVIDIA driver does not respond": r"the NVIDIA driver of this machine does not respond",
    "compile cannot be used": r"^compile=(yes|graphs): |^a block was compiled for ",
    "a library is too old, too new or damaged": r" is too (old|new).* \(required: |^.+ libraries cannot be used$"
    r"| is installed(, but cannot be imported| only in part)",
    "not installed": r"^.+ libraries are not installed$"
    r"|^Kaggle's client cannot be loaded|^not installed: | is not installed( \(required: |$)"
    r"| is not installed\)?$|, which is not installed$|: it needs .* cannot be imported",
    # The command line
    "there is no target of this name": r"^there is no target |^--on .*: "
    r"(not a machine of|notebooks are|it fits |no machine of|a target has|only NVIDIA GPUs|not a description of a GPU)",
    "there is no recipe of this name": (
        r"^there is no (recipe|file) (?!.* in )|^hf: names no model| has no recipe| has \S+ recipes: "
    ),
    "the configuration file cannot be used": r"^the configuration file | cannot be used: .*TOML",
    "invalid options or settings": (
        r"^invalid (options|settings|option|setting)|^--set was not understood|^options of .* cannot be used"
    ),
    "the recipe is not complete": (
        r" is not a recipe: it lacks |names of other frameworks, which would be ignored"
        r"|^functions of the recipe have other parameters|^the options of .* are (the class|of)"
    ),
    "the recipe's code raised an error": (
        r" could not be run: | does not accept its options: |could not be made with its default options"
        r"| cannot be read as a recipe: |^the recipe's code |^\w+(Error|Exception): "
    ),
    "the command would execute a file": r" would execute the file ",
    "the recipe's package": (
        r"^several packages have a recipe named|^the recipe .* of .* cannot be loaded"
        r"|^the recipe .* is of .*, and here of "
        r"| was trained with the recipe .*, which is not installed here$|^the recipe's package "
        r"|^a notebook carries no other package"
    ),
    # Rehearsing
    "the rehearsal needs another PyTorch or machine": (
        r"^a rehearsal needs |^PyTorch .* is too old for a rehearsal|is Python .*; rehearsals run with "
        r"|has not been prepared on this machine$|^PyTorch is not installed in this environment"
    ),
    "the rehearsal could not be prepared": (
        r"^pip could not install |has no pip, which installs what a rehearsal needs|^the stack .* needs Python "
        r"|^the package index serves PyTorch .* without CUDA|^an environment for the rehearsal could not be made"
        r"|^the (stack .*|wheel of PyTorch) could not be written|cannot be started: "
    ),
    "the simulator could not be compiled": (
        r"^there is no C\+\+ compiler|^the compiler .*, which CXX names|could not be compiled|could not be linked with "
        r"|^\S+ is not installed, which tells the symbols|^\S+ cannot read \S+: "
    ),
    "there is nothing to rehearse": (
        r"^there is nothing to rehearse|^there is no (script|stack|option) |is (a folder, )?not a script"
        r"|were given, and a rehearsal is of one| stands before --$|only a recipe has options and settings"
        r"|there is no GPU to simulate|has no GPU to simulate|updates count from 1|there are no such values"
        r"|^--prepare is given alone|^-m names no module|cannot be read as a notebook"
    ),
    # Planning
    "does not fit on kaggle-t4": r" does not fit (?!the )|^the upper estimate of .* is more than the ",
    "the update depends on a tensor's values": r" depends on a tensor's values",
    "an operator has no implementation for fake tensors": r"^an operator has no implementation for fake tensors",
    "the trace has not ended": r" has not ended within .* the limit of one trace",
    "the process that traces has died": r"^the (copy of the )?process that traces ",
    "the settings need more GPUs": r"^the settings need more GPUs| cannot be trained in this way on ",
    "a setting is not possible with this model": (
        r"^(checkpointing|offload|quantization|optimizer_states|optimizer_kernel|memory_format|fp32_modules|lora_targets|precision|packing|loss_chunk)="
        r"|^(offload=parameters|streamed_blocks=|the frozen tensor .* of a streamed block )"
        r"|^sharding(=\S+)?: |^weights that are trained are fp16"
        r"|^this optimizer can be estimated|^the model cannot be adapted"
        r"|^training with .* does not support these settings|^loss_chunk cannot be used"
        r"|^updates of .* are never split"
    ),
    "the Hugging Face configuration cannot be used": (
        r"^the configuration of hf:|is no model configuration: | has the adapter of a model"
        r"|: its weights are quantized already"
        r"| names no model_type, | has the model_type "
        r"|^hf: does not know | has no model class that hf: |^head=.* has no such head"
    ),
    "the run cannot calibrate the plan": (
        r" cannot calibrate: | usable progress lines, |^the plan of .* predicts no time"
    ),
    "the measured rates cannot be used": r" has (no measured|damaged) rates| of the format, and this program reads "
    r"|^only this machine can be measured",
    # Starting
    "the run is being trained by another process": r" is being trained by another process ",
    "this machine has no GPU": r"^--on .*: this machine has no GPU",
    "the lock of the run cannot be used": r" cannot be locked| is not the lock of a run| the lock of a run, and is not "
    r"| is a directory, not a lock",
    "the directory is not empty and contains no run": r" is not empty and contains no run: ",
    "the options of the run cannot be changed": r"^the options of the run in .* cannot be changed",
    "the recipe is not the one of the run": (
        r"^.* is a run of .*, not of |^the recipe of .* is not at its stored location"
        r"|^the recipe of .* was an object in a Python process| does not fit the recipe "
    ),
    "the run needs more disk space": r"^the (run|export) needs .* of disk space, but |^the copy has .* free$"
    r"|^stream_from=disk: ",
    "data returned something else": (
        r"^data\(\) returned (?!other data)| has no data\(\)| has no data: |has nothing to train on: "
        r"|which can only be read sequentially: "
    ),
    "the training data cannot be used": (
        r"^training on this data would be futile|: no row of the training data is left| has no rows"
        r"|^subset=.* is not possible| are too few to train|^columns=| has too few rows: "
        r"| cannot be read: its ending is unknown|^the (file or )?folder .* (does not exist|cannot be read)"
        r"|^the chat template | has no (tiles|triplets|CSV files|file \*|file of training data)"
        r"|^(data|fold|roles|timeframe)=\S*: | has files (of unknown content|that cannot be)"
        r"| has timeframes that do not fit"
    ),
    "the folds cannot be trained": (
        r" folds are not possible$| folds were asked for$|^--set fold=.* trains one fold"
        r"|^a launcher such as torchrun has started this process, and folds "
        r"|cannot be used for the runs of folds|something else than the runs of folds"
        r"|, whose samples fold .* holds out$"
        r"|^unaugmented\(dataset\) returned |^fold=.*: the training data has "
        r"|^the process of the out-of-fold predictions |the rows of the folds in | predictions of several folds "
    ),
    "after_update cannot be called": r"^after_update\(\) ",
    "the tokenizer has no chat template": r"^the tokenizer has no chat template",
    "the weights to start from lack some of the model": r" lacks .* of the weights, for example ",
    "a launcher has started several processes": r"a launcher has started .* processes|but the launcher has started "
    r"|but this is one of .* processes of a launcher",
    "the recipe is an object of this process": r"the recipe is an object of this |exists only in this process",
    # Training
    "CUDA out of memory: nothing is left to try": r"^out of memory(?! with a single input)",
    "the loss is not finite": r"^the .* of update .* is |cannot be compared with the model, whose outputs have numbers"
    r"|^the total weight of an update's samples is zero",
    "the model overflows in fp16": r"^the model overflows in fp16",
    "an index is outside of an embedding": r"the index \S+ is outside of an embedding",
    "loss returned something else": r"^loss\(\) ",
    "the optimizer or the scheduler cannot be used": (
        r" optimizers, but a run has one|^the recipe has a schedule and |^.* as the scheduler$"
        r"| belongs to another optimizer|its step needs | was made with total_steps="
        r"| cannot make another step: |^the configuration of a scheduler cannot be used"
    ),
    "the batch cannot be moved to a device": r"cannot be moved to a device|cannot be copied to a device",
    "packed samples attend to each other": r"^packed samples attend |^packing=yes: this model does not separate",
    "a data worker process died": r"^a data worker process died",
    "evaluate returned something else": (
        r"^evaluate(_batch)?\(\) returned |^the metric .* cannot be stored|^the deciding metric "
        r"|^answers\(\) returned "
    ),
    "the evaluation takes longer than a session": r" samples takes .* but a session of |^not evaluated: ",
    "the training process was ended": r"^the training process |^a process of this run left with status ",
    "a process of the run was lost": (
        r" restarts in this session|^processes of this run do not end|cannot connect to each other: "
        r"|before all processes of the run have started"
    ),
    "the processes do not have the same data or weights": (
        r"^data\(\) returned other data in process |^after update .* the weights of GPU "
        r"|is not shared by all processes: |the model cannot be trained by several"
    ),
    "a resumable trainer cannot train with these arguments": r"^a resumable .* cannot train with",
    "train was called a second time": r"^train\(\) was called a second time",
    # Saving
    "the checkpoint could not be written": r"^the checkpoint of update .* could not be written|^weights could not be "
    r"|cannot be used for checkpoints: ",
    "the state cannot be saved": r"^the checkpoint of update .* cannot be saved|^the state has a |^the trainer's state "
    r"|which the safetensors format does not support",
    "the directory of the run is gone": r" is gone$",
    "links in a run's directory are not followed": (
        r"links in a run's directory are not followed|is neither a file nor a directory, so it is not of a run"
    ),
    "a file is of another run": r" is of another run than ",
    # Continuing
    "the run would not continue bit for bit": (
        r"^the run would not continue bit for bit|nothing shows whether the run would continue"
    ),
    "all checkpoints are damaged": r"^all checkpoints in .* are damaged|^the run has made .* has no checkpoint",
    "the checkpoint belongs to another model or optimizer": (
        r"^the checkpoint (belongs to another|is of another|does not fit|was not saved by a trainer|cannot be restored)"
    ),
    "a file of the run has changed since it was written": (
        r" has changed since it was written: its digest| does not contain a JSON object"
        r"|^\S+/(plan|state)\.json (is damaged|lacks |cannot be read)"
    ),
    "the checkpoint was written by a newer version": r" has format .* but this version reads formats ",
    # Evaluating, predicting, exporting
    "the directory is not a run": (
        r" is neither a run nor the weights of a run|^there is no directory |is not a run directory: "
        r"| is not the directory of a run|^the run in .* has saved no weights yet| contains no plan$"
    ),
    "a measurement is refused": (
        r" is not credible as a measurement$| is not (the measurement of the run|a measurement)"
        r"|so nothing was predicted$|: no session of the run has begun to train$"
        r"| updates after the first one of a session$"
    ),
    "the weights are of another model": (
        r"cannot be loaded: (its weights are|it belongs to another)|the adapters in .* belong to another model"
    ),
    "the weights may execute code": r" is not loaded: it contains ",
    "a file is damaged": r" is damaged| cannot be loaded: ",
    "a saved model can only be used on this machine": r"can only be (used|replayed) on this machine",
    "the inputs are not named": r"^the inputs are not named|^inputs is ",
    "the recipe cannot predict": r" cannot predict: it has no predict| has no predictions for single samples",
    "a single input does not fit into memory": r"^out of memory with a single input",
    "the predictions are of another run": (
        r" has rows of another run, |^.* cannot be continued: | tells where its rows are from"
        r"|is being written by another process"
    ),
    "not all inputs are predicted": r"^not all inputs are predicted",
    "the file or folder exists": r" exists( and is not a page, so it is not replaced)?$| is not replaced: ",
    "the run has no such export": r" cannot be exported to |which this format does not have|so there is no adapter$",
    "the export differs from the model": r"^the export to .* differs |^the logits of .* differ by |beyond the range of "
    r"|^torch cannot export the model as an ONNX graph",
    "the update cannot be replayed": r"^--update .*: the |^the updates of the run in .* are made by |^not replayed: ",
    # Kaggle
    "nobody is signed in to Kaggle": r"nobody is signed in to Kaggle|^Kaggle does not accept the token ",
    "Kaggle refused the session": r"^Kaggle refused ",
    "Kaggle does not answer": r"^Kaggle has not answered |^the process of Kaggle's client |^Kaggle's client \(",
    "the hours of the week are used up": r"; it is refreshed ",
    "the run cannot be sent to Kaggle": (
        r"^the run cannot be sent to Kaggle|^the data cannot be attached|which is not sent to Kaggle"
    ),
    "the recipe is too large for Kaggle": r"^the (script for Kaggle|notebook) has .* Kaggle (accepts|takes) at most",
    "the directory has no chain on Kaggle": r" has no chain on Kaggle|^no session of .* has left a checkpoint yet",
    "the directory has a chain of another run": r" has a chain of another run| has a session that .* knows nothing of",
    "the output of Kaggle could not be fetched": r"^the output of .* could not be downloaded|^session .* was killed or "
    r"|but what Kaggle has is at update |^the package .* is not complete on Kaggle",
    # Copies
    "there is no complete copy of a run": r"there is no complete copy of a run|^no copy in .* can be restored",
    "the copy cannot be read": r"^--from .* cannot be read: | of the newest copy cannot be read: ",
    "the copy is of another run": r" has another run than |^the backup belongs to another run|--from overwrites no run"
    r"|^another machine copies this run",
    "the URL of the copies cannot be used": r": the URL (has a user|is not complete)| names no folder$",
    # The system
    "a file cannot be read": r" cannot be read(: |$)| contains no JSON | cannot be copied: ",
    "the system refused an operation": (
        r"^the system refused an operation|^(?!standard output).* could not be (written|stored|restored)"
        r"| cannot be (used as a run directory|written|listed|stored)"
    ),
}
"""The headings of the page, each with an expression that is searched in the message. The first that is found counts."""


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as the documentation site and GitHub make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()))


def explanation(message: str) -> str | None:
    """Return the page and the anchor where an error's message is explained, or None if it is not."""
    for heading, pattern in HEADINGS.items():
        if re.search(pattern, message):
            return f"{PAGE}#{anchor(heading)}"
    return None
