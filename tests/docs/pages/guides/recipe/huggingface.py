import json
import tempfile
from pathlib import Path

import torch

import shoestring

CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64,
}
Path("path/to").mkdir(parents=True)
Path("path/to/config.json").write_text(json.dumps(CONFIGURATION))
tokens = torch.randint(100, (16, 64))
# block


shoestring.train(Mine, run="runs/huggingface", seq_len=64, epochs=1)
