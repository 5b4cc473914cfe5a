"""What the arguments of a library's trainer decide, as a table.

An argument that is not in the table decides learning: those of TRL's configurations, of later versions, and of a
script's own class of arguments are compared without being known here.
"""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING = """
    output_dir overwrite_output_dir run_name project report_to logging_dir logging_strategy logging_steps
    logging_first_step logging_nan_inf_filter log_level log_level_replica log_on_each_node disable_tqdm
    include_num_input_tokens_seen include_tokens_per_second skip_memory_metrics debug
    trackio_space_id trackio_bucket_id trackio_static_space_id
    save_strategy save_steps save_total_limit save_only_model save_on_each_node save_safetensors enable_jit_checkpoint
    push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    push_to_hub_model_id push_to_hub_organization push_to_hub_token
    resume_from_checkpoint restore_callback_states_from_checkpoint ignore_data_skip
    do_train do_eval do_predict prediction_loss_only per_device_eval_batch_size per_gpu_eval_batch_size
    eval_accumulation_steps eval_do_concat_batches eval_use_gather_object eval_on_start batch_eval_metrics
    include_for_metrics include_inputs_for_metrics bf16_full_eval fp16_full_eval eval_packing num_generations_eval
    predict_with_generate generation_max_length generation_num_beams generate_during_eval
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataset_num_proc precompute_ref_batch_size
    use_cpu no_cuda use_mps_device local_rank ddp_backend ddp_timeout ddp_find_unused_parameters ddp_bucket_cap_mb
    ddp_broadcast_buffers ddp_static_graph torch_empty_cache_steps ray_scope tpu_num_cores tpu_metrics_debug
    jit_mode_eval auto_find_batch_size full_determinism use_cache
    gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs
    activation_offloading
    log_completions log_completions_hub_repo log_unique_prompts log_multimodal num_completions_to_print
    trust_remote_code ds3_gather_for_generation chat_template_path
    vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
    vllm_gpu_memory_utilization vllm_enable_sleep_mode vllm_tensor_parallel_size
""".split()  # noqa: SIM905
"""Logging, saving, evaluation, what makes the same batches in another way, and what computes the same gradients with
less memory. The template of a chat is compared by its text, not by its path."""
_EVALUATION = (
    *("eval_strategy", "eval_steps", "eval_delay", "metric_for_best_model", "greater_is_better"),
    *("load_best_model_at_end", "label_names", "evaluation_strategy"),
)
LENGTH = ("num_train_epochs", "max_steps")
"""The arguments that decide how many updates a run has."""

_SCHEDULE = "the learning rate would jump at the next update, to that of the new schedule at this update"
_OPTIMIZER = "the new value would hold from the next update on"
_BATCH = (
    "the position in the data is counted in updates, so samples of this epoch would be repeated or left out, unless "
    "the effective batch stays the same"
)
_ORDER = "the rest of this epoch would have other samples, some a second time and some never"
_MODEL = "the trained weights would continue in a model that computes something else"
_EFFECTS: Mapping[str, str] = {
    **dict.fromkeys(
        (*LENGTH, "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
        _SCHEDULE,
    ),
    **dict.fromkeys(
        (
            *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "max_grad_norm"),
            *("label_smoothing_factor", "neftune_noise_alpha"),
        ),
        _OPTIMIZER,
    ),
    "optim": "its state does not belong to the new optimizer, which would begin without moments",
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps", "per_gpu_train_batch_size"), _BATCH),
    **dict.fromkeys(
        (
            *("seed", "data_seed", "train_sampling_strategy", "group_by_length", "length_column_name"),
            *("dataloader_drop_last", "shuffle_dataset", "packing", "packing_strategy", "max_length"),
        ),
        _ORDER,
    ),
    "data": _ORDER,
    "model": _MODEL,
    "adapter": _MODEL,
}
"""What would happen with a changed value, by argument, or by the first part of a fact's name."""
_EFFECT = "the rest of the run would learn from another loss, other samples or other random numbers than its start"


def decides_learning(name: str, *, evaluations_decide: bool) -> bool:
    """Return whether the argument `name` decides what a run learns.

    `evaluations_decide` says whether evaluations do, through the learning rate, the end of the run or its best weights.
    """
    return name not in _NOTHING and (evaluations_decide or name not in _EVALUATION)


def effect_of(name: str) -> str:
    """Return what would happen if a run continued with another value of the fact `name`."""
    return _EFFECTS.get(name) or _EFFECTS.get(name.partition(".")[0]) or _EFFECT
