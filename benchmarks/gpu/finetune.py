"""Fine-tune a small random language model on a GPU with Shoestring, and beside it with TRL's SFTTrainer.

    python -m benchmarks.gpu.finetune [--json OUT] [--seconds 120] [--dry-run]

The contenders are those of `benchmarks/finetune`: the same rows, LoRA adapters, tokens and schedule, here in fp16. The
model is as wide as Qwen2.5-0.5B with six layers and random weights, since none can be downloaded; so speed and memory
count, and losses only show that all train the same. The exit status is 2 without a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.finetune.compare import ask
from benchmarks.finetune.contenders import Question
from benchmarks.gpu import harness

CONTENDERS = ("Shoestring, by length", "TRL, by length", "Shoestring, packed", "TRL, packed")
UPDATES, ROWS = 12, 16
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = "the cat sat on a mat while seven small boats sailed past an old grey house and nobody saw them go".split()  # noqa: SIM905


def write_data(file: Path, rows: int) -> list[str]:
    """Write conversations of various lengths, and return their texts."""
    draw = random.Random(0)
    texts = []
    with file.open("w", encoding="utf-8") as lines:
        for _ in range(rows):
            words = [draw.choices(_WORDS, k=min(400, int(draw.lognormvariate(4, 0.8)) + 2)) for _ in range(2)]
            question, answer = (" ".join(part) for part in words)
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            lines.write(json.dumps({"messages": messages}) + "\n")
            texts += [question, answer]
    return texts


def write_model(folder: Path, texts: list[str], *, tiny: bool) -> None:
    """Write a model with random weights and a tokenizer that is trained on the texts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    if not tiny:
        sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 6, "num_attention_heads": 14}
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=4096,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        **sizes,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def main() -> int:
    arguments = harness.build_parser(__doc__, file="gpu_finetune.json", seconds=120).parse_args()
    selection = harness.select_cases(dry_run=arguments.dry_run)
    if selection is None:
        return 2
    _, gpu, kind = selection
    missing = [name for name in ("trl", "peft", "datasets") if importlib.util.find_spec(name) is None]
    end = time.monotonic() + arguments.seconds
    updates, rows = (3, 4) if arguments.dry_run else (UPDATES, ROWS)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = write_data(folder / "rows.jsonl", updates * rows)
        write_model(folder / "model", texts, tiny=arguments.dry_run)
        question = Question(
            model=str(folder / "model"),
            data=str(folder / "rows.jsonl"),
            method="sft",
            updates=updates,
            effective_batch=rows,
            micro_batch=rows // 2,
            seq_len=1024,
            checkpointing=False,
            lora_r=16,
            learning_rate=2e-4,
            seed=0,
            threads=2,
            device=kind,
            precision="fp16" if kind == "cuda" else "fp32",
        )
        for number, contender in enumerate(CONTENDERS):
            if contender.startswith("TRL") and missing:
                row: dict[str, Any] = {"contender": contender, "skipped": f"{', '.join(missing)} is not installed"}
            elif time.monotonic() > end:
                row = {"contender": contender, "skipped": "no time is left"}
            else:
                out = folder / str(number)
                out.mkdir()
                request = {"name": contender, "question": vars(question), "folder": str(out)}
                try:
                    row = {"contender": contender, **ask("contenders", request, question.threads)}
                except SystemExit as error:
                    row = {"contender": contender, "skipped": str(error)[-600:]}
            results.append(row)
            harness.write_results(arguments.json, gpu, {"rows": results})
            if "skipped" in row:
                print(f"{contender:24} skipped: {row['skipped']}", flush=True)
                continue
            print(
                f"{contender:24} {row['learnt_tokens_per_second']:9.0f} learnt tokens/s, "
                f"{row['update_seconds'] * 1e3:7.1f} ms an update, {row['peak_bytes'] / 2**20:7.0f} MiB reserved",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
