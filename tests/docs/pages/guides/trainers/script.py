import os

from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

from tests.recipes.finetune.tokenizers import make_tokenizer

folder = f"model-{os.environ.get('RANK', 0)}"  # of each process
tokenizer = make_tokenizer(pad="<|endoftext|>")
tokenizer.save_pretrained(folder)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
model = LlamaForCausalLM.from_pretrained(folder)
arguments = SFTConfig(
    output_dir="output", max_steps=4, per_device_train_batch_size=2, max_length=32, use_cpu=True, report_to=[],
    save_strategy="no", bf16=False,
)
dataset = Dataset.from_list([{"text": f"Two plus two is {number}."} for number in range(32)])
# block
