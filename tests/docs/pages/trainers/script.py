from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

from tests.recipes.finetune.tokenizers import make_tokenizer

tokenizer = make_tokenizer()
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
)
arguments = SFTConfig(
    output_dir="output", max_steps=4, per_device_train_batch_size=2, max_length=32, use_cpu=True, report_to=[],
    save_strategy="no", bf16=False,
)
tokenizer.pad_token = "<|endoftext|>"
dataset = Dataset.from_list([{"input_ids": tokenizer(f"Two plus two is {number}.")["input_ids"]} for number in range(32)])
# block
