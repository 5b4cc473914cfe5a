"""A model that a reader has: a small one with random weights; conversations and prompts."""

import json
from pathlib import Path

from transformers import LlamaForCausalLM

from shoestring_recipes.finetune import tiny

rows = [
    {"messages": [{"role": "user", "content": f"What is {number}?"}, {"role": "assistant", "content": f"It is {number}."}]}
    for number in range(64)
]
Path("chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
Path("prompts.jsonl").write_text(json.dumps({"messages": rows[0]["messages"][:1]}) + "\n")
LlamaForCausalLM(tiny.configuration()).save_pretrained("path/to/model")
tiny.train_tokenizer(json.dumps(row) for row in rows).save_pretrained("path/to/model")
