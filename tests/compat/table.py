"""Which feature of PyTorch goes with guarded code, and which tests say so.

The documentation renders this table, and test_table.py checks it: every test of this folder stands
here, and every name here is a test.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ["ROWS", "Row"]

Verdict = Literal["works", "works, see note", "refused"]

_PYTORCH: Final = "https://github.com/pytorch/pytorch/issues/"


class Row(NamedTuple):
    """One line of the table."""

    group: str
    """Headline that it stands under."""
    feature: str
    """What a user combines guarded code with."""
    verdict: Verdict
    """"works"; "works, see note" where something differs; "refused" where an error says why."""
    tests: tuple[str, ...]
    """`module::function`, relative to tests/compat."""
    note: str = ""
    """What differs, or why it is refused. Needed unless it just works."""
    issue: str = ""
    """PyTorch's own discussion of the limit, where there is one."""


def _in(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"test_{module}::test_{name}" for name in names)


_COMPILE: Final = "Compilers and tracers"
_TRANSFORMS: Final = "Transforms"
_TRAINING: Final = "Training"
_DISTRIBUTED: Final = "Distributed"
_MODULES: Final = "Modules and hooks"
_INPUTS: Final = "Inputs"
_LOOKING: Final = "Code that looks at tensors"
_THREADS: Final = "Threads and tasks"
_CUDA: Final = "CUDA"

ROWS: Final[tuple[Row, ...]] = (
    # -- compilers and tracers ---------------------------------------------------------------------
    Row(
        _COMPILE,
        "`torch.compile(module, fullgraph=True)`, `module.compile()`, dynamic shapes",
        "works, see note",
        _in(
            "compile",
            "compiled_fullgraph", "module_compile", "dynamic_shapes", "no_recompiles_because_of_us",
            "compiled_without_gradients", "the_same_tensor_twice_is_one_handle",
            "mutable_is_written_when_compiled", "mode_off_compiled",
            "nothing_is_recorded_when_compiled", "recompile_limit_falls_back",
            "state_kept_from_a_compiled_call_is_plain",
        ),
        "Writes in compiled code go to copies without a record, and `strict` does not raise there.",
    ),
    Row(
        _COMPILE,
        "Reading an input, writing it and backpropagating, compiled",
        "works, see note",
        _in(
            "compile",
            "compiled_fullgraph", "operations_compiled",
            "a_custom_function_saved_before_a_write_is_as_a_manual_clone",
            "a_written_input_stays_a_handle",
        ),
        "From PyTorch 2.8 on. An input that a custom `autograd.Function` or `torch.vmap` has used "
        "before the write is differentiated as after a manual clone: that is the compiler's own "
        "rule, and `Function.apply` and `vmap` do not ask tensor subclasses.",
        f"{_PYTORCH}149788",
    ),
    Row(
        _COMPILE,
        "A guarded module inside a compiled model, nested guarded modules, `guard`, `freeze`",
        "works",
        _in(
            "compile",
            "submodule_of_a_compiled_model", "nested_guarded_modules_compiled",
            "guarded_model_compiled", "freeze_compiled", "containers_compiled",
            "named_tuples_and_lists_compiled",
        ),
    ),
    Row(
        _COMPILE,
        "Graph breaks inside `forward`",
        "works, see note",
        _in(
            "compile",
            "graph_break_inside_forward", "graph_break_is_as_a_manual_clone",
            "a_disabled_function_stays_guarded",
        ),
        "Each piece gets copies. A value that is read before a break and written after it is "
        "refused in backward, as after a manual clone.",
        f"{_PYTORCH}111003",
    ),
    Row(
        _COMPILE,
        "Inductor",
        "works",
        _in("compile", "inductor_drops_the_clones", "inductor_reads_then_writes"),
        "The generated code has no buffer that the code of the unguarded function lacks.",
    ),
    Row(
        _COMPILE,
        "Calling compiled modules and functions from a guarded `forward`, `torch.cond`",
        "works, see note",
        _in(
            "compile",
            "calling_compiled_code", "compiled_submodule_is_compiled_once",
            "compiled_code_that_writes_its_input", "views_from_compiled_code",
            "containers_cross_into_compiled_code", "cond_inside_a_guarded_call",
            "graph_break_in_compiled_code_called_from_a_guarded_call",
            "a_value_that_autograd_saved_crosses_without_a_copy",
            "compiled_before_the_library_was_imported",
            "the_library_does_not_import_the_compiler", "compiled_code_is_still_recognised",
        ),
        "A tensor that crosses into compiled code is copied once, as compiled code writes through "
        "addresses; `log.copies` lists it. What was compiled before the library was imported runs "
        "without the compiler when it is given a handle.",
        f"{_PYTORCH}193932",
    ),
    Row(
        _COMPILE,
        "`torch.export`, `torch.jit.trace`, `torch.fx`, `make_fx`, `aot_function`",
        "works, see note",
        _in(
            "trace_export",
            "export", "export_with_dynamic_shapes_and_decompositions", "jit_trace",
            "fx_symbolic_trace", "make_fx", "make_fx_functionalized", "aot_function",
            "flop_counter_around",
        ),
        "Inputs are cloned on entry, so that the graph holds ordinary operations: a value that is "
        "read, written and then differentiated is refused as after a manual clone.",
    ),
    Row(
        _COMPILE,
        "Tracing, exporting and fake tensors inside a guarded `forward`",
        "works",
        _in(
            "trace_export",
            "make_fx_inside", "fake_tensor_mode_inside", "export_inside",
            "flop_counter_and_profilers_inside",
        ),
    ),
    Row(
        _COMPILE,
        "Scripted submodules inside",
        "works, see note",
        _in(
            "trace_export",
            "scripted_code_inside", "scripted_code_that_writes_is_reported",
            "scripted_code_that_writes_after_a_clone",
        ),
        "TorchScript ignores tensor subclasses: a scripted function that writes its argument writes "
        "the caller's tensor. It is reported when the guarded call ends, and `strict` raises.",
        f"{_PYTORCH}51135",
    ),
    # -- transforms --------------------------------------------------------------------------------
    Row(
        _TRANSFORMS,
        "`functional_call`, `vmap`, `grad`, `vjp`, `jvp`, `jacrev`, `jacfwd`, `hessian`, ensembles",
        "works, see note",
        _in(
            "transforms",
            "transforms_over_a_guarded_module", "ensemble",
            "read_then_written_in_a_transform_is_as_a_manual_clone",
        ),
        "In a transform inputs are cloned on entry: a value that is read, written and then "
        "differentiated is refused as after a manual clone.",
    ),
    Row(
        _TRANSFORMS,
        "Transforms of an input inside a guarded `forward`",
        "works, see note",
        _in(
            "transforms",
            "transforms_inside_a_guarded_call", "a_transform_inside_is_listed_as_a_copy",
            "energy_and_forces_inside",
        ),
        "A transform writes past Python, so it gets a copy; `log.copies` lists it, and what the "
        "transform writes is not on record.",
        f"{_PYTORCH}149788",
    ),
    Row(
        _TRANSFORMS,
        "Forward-mode AD, `torch.autograd.functional`, `gradcheck`",
        "works",
        _in("transforms", "forward_mode", "dual_made_inside", "functional_api", "gradcheck"),
    ),
    # -- training ----------------------------------------------------------------------------------
    Row(
        _TRAINING,
        "Backward, double backward, `retain_graph`, gradient accumulation",
        "works",
        _in(
            "training",
            "forward_and_backward", "double_backward", "retain_graph", "gradient_accumulation",
            "parameters_as_inputs", "backward_in_forward", "a_written_input_survives_an_exception",
        ),
    ),
    Row(
        _TRAINING,
        "Autocast, GradScaler",
        "works",
        _in("training", "autocast", "autocast_keeps_no_stale_weight_cast", "grad_scaler"),
    ),
    Row(
        _TRAINING,
        "Optimisers, schedules, clipping, averaging, a step between two backwards",
        "works",
        _in(
            "training",
            "a_few_epochs", "an_optimizer_between_two_backwards",
            "a_step_before_the_backward_is_refused_as_in_pytorch", "clipping_and_lr_schedule",
            "exponential_moving_average_and_swa", "post_accumulate_gradient_hook",
        ),
    ),
    Row(
        _TRAINING,
        "Gradient checkpointing, reentrant and not, selective, around and inside",
        "works",
        _in(
            "checkpoint",
            "around_a_guarded_module", "inside_a_guarded_module",
            "a_write_after_a_checkpointed_call",
            "a_checkpointed_function_that_writes_its_argument", "nested_and_sequential",
            "random_numbers_are_the_same_again", "selective_checkpointing",
            "checkpoint_without_gradients", "recomputation_is_recorded_as_any_call",
        ),
    ),
    Row(
        _TRAINING,
        "Custom `autograd.Function`s: `setup_context`, `mark_dirty`, `vmap`, `jvp`, double backward",
        "works",
        _in(
            "custom_function",
            "before_and_after_a_write", "double_backward", "vmap_of_a_function_inside",
            "forward_mode_of_a_function_inside", "mark_dirty", "a_function_that_writes_in_secret",
            "gradient_reversal", "a_write_behind_a_reversed_view_is_refused_as_in_pytorch",
            "without_gradients",
        ),
    ),
    Row(
        _TRAINING,
        "Saved-tensor hooks, `save_on_cpu`, `allow_mutation_on_saved_tensors`",
        "works, see note",
        _in(
            "training",
            "saved_tensors_hooks", "save_on_cpu", "allow_mutation_on_saved_tensors",
            "hooks_that_keep_the_tensor_itself_are_as_in_pytorch",
        ),
        "A pack hook that keeps the very tensor it is given, as `save_on_cpu` does with one that is "
        "on the CPU already, sees a later write of it: PyTorch checks no versions under hooks.",
    ),
    Row(
        _TRAINING,
        "Anomaly mode, tensor hooks, `retain_grad`",
        "works",
        _in("training", "anomaly_mode", "tensor_hooks_and_retained_gradients"),
    ),
    # -- distributed -------------------------------------------------------------------------------
    Row(
        _DISTRIBUTED,
        "DistributedDataParallel, FSDP2 (`fully_shard`), DTensor, tensor parallelism, collectives",
        "works",
        _in("distributed", "distributed"),
        "A collective that writes an input writes a copy, on record under its name.",
    ),
    # -- modules and hooks -------------------------------------------------------------------------
    Row(
        _MODULES,
        "Forward, backward and global hooks, with a write on the first line of `forward`",
        "works",
        _in(
            "modules_hooks",
            "every_hook", "backward_hook_and_a_write_on_the_first_line",
            "always_call_hook_runs_when_forward_fails", "global_hooks", "a_hook_that_writes",
            "guard_reaches_every_hooked_module",
        ),
        "Hooks run outside of `forward`: what a hook writes is the caller's.",
    ),
    Row(
        _MODULES,
        "Parametrizations, `weight_norm`, `spectral_norm`, lazy modules, module containers",
        "works",
        _in(
            "modules_hooks",
            "parametrizations", "a_guarded_parametrization", "lazy_modules",
            "module_lists_and_sequentials_inside", "module_methods",
        ),
    ),
    Row(
        _MODULES,
        "`state_dict`, `torch.save`, `deepcopy`, pickle, spawned processes",
        "works",
        _in("modules_hooks", "state_dict", "save_and_load", "copies_are_guarded", "spawned_process"),
    ),
    Row(
        _MODULES,
        "RNN, GRU, LSTM, packed sequences",
        "works",
        _in("modules_hooks", "recurrent_modules", "a_packed_sequence_as_input"),
    ),
    Row(
        _MODULES,
        "MultiheadAttention, Transformer",
        "works, see note",
        _in(
            "modules_hooks",
            "attention_on_handles", "attention_fast_path_is_not_taken_on_handles",
        ),
        "In inference, `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` take their fused "
        "kernel only for plain tensors. Given a handle they take the ordinary path; given anything "
        "computed from it, the fused one.",
        "https://github.com/pytorch/pytorch/pull/75809",
    ),
    Row(
        _MODULES,
        "Data loaders, worker processes, shared memory",
        "works",
        _in("modules_hooks", "data_loader", "memory_of_workers"),
    ),
    # -- inputs ------------------------------------------------------------------------------------
    Row(
        _INPUTS,
        "Parameters, buffers, every dtype, empty and scalar tensors, conjugate and negative views",
        "works",
        _in(
            "inputs",
            "parameters_and_buffers", "own_parameters_and_buffers_are_not_inputs", "dtypes",
            "empty_and_scalar_tensors", "lazily_conjugated_and_negated_views",
        ),
    ),
    Row(
        _INPUTS,
        "Sparse, nested, quantized and fake tensors",
        "works, see note",
        _in(
            "inputs",
            "sparse_tensors", "sparse_gradients", "nested_tensors", "quantized_tensors",
            "fake_tensors",
        ),
        "They are cloned on entry, and their writes are not on record.",
    ),
    Row(
        _INPUTS,
        "Meta tensors, inference tensors in and out of inference mode",
        "works",
        _in("inputs", "meta_tensors", "inference_tensors", "ordinary_tensors_in_inference_mode"),
    ),
    Row(
        _INPUTS,
        "Tensor subclasses of users and libraries",
        "works, see note",
        _in(
            "inputs",
            "a_subclass_keeps_its_type", "an_unwritten_subclass_comes_back_as_itself",
            "a_handle_meets_a_subclass", "a_wrapper_subclass",
        ),
        "They keep their type: they are cloned on entry, and their writes are not on record.",
    ),
    Row(
        _INPUTS,
        "TensorDict, `ModelOutput`, `BatchEncoding`, classes registered with pytree",
        "works",
        _in("inputs", "tensordict", "model_output", "batch_encoding", "registered_objects_are_protected"),
    ),
    Row(
        _INPUTS,
        "Objects with tensors as attributes (PyG's `Data`)",
        "works, see note",
        _in("inputs", "objects_of_attributes_pass_through"),
        "An unknown object is passed through as it is, unprotected. Guard what takes the tensors "
        "themselves, or register the class with `torch.utils._pytree`.",
    ),
    Row(
        _INPUTS,
        "`functools.partial`, coroutines, `*args`, `**kwargs`, static and class methods",
        "works",
        _in(
            "inputs",
            "partial_forwards", "async_forwards", "star_arguments_and_defaults",
            "static_and_class_methods",
        ),
    ),
    Row(
        _INPUTS,
        "Generator functions",
        "refused",
        _in("inputs", "generators_are_refused", "generators_over_frozen_values"),
        "`TypeError` at decoration: what a generator yields must be plain while it goes on writing. "
        "Guard the functions that it calls, or use `freeze(x)` inside.",
    ),
    # -- code that looks at tensors ----------------------------------------------------------------
    Row(
        _LOOKING,
        "`isinstance`, `repr`, f-strings, shapes, iteration, `tolist`, `match`, comparisons",
        "works",
        _in(
            "looking_at_tensors",
            "looking_at_an_input", "looking_at_a_written_input", "reading_copies_nothing",
            "writes_by_looking", "torch_testing_on_handles",
            "tensors_as_dictionary_keys_and_in_weak_references",
        ),
        "`type(x) is torch.Tensor` is false for a handle.",
    ),
    Row(
        _LOOKING,
        "`numpy()`, `__array__`, DLPack, `data_ptr()`",
        "works, see note",
        _in("looking_at_tensors", "numpy_arrays_share_the_private_copy", "data_ptr_caching"),
        "Whoever gets the address may write there, so the copy is made first; `log.copies` lists it.",
    ),
    Row(
        _LOOKING,
        "`copy.copy`, `deepcopy`, pickling a handle",
        "works",
        _in("looking_at_tensors", "copies_of_a_handle"),
    ),
    Row(
        _LOOKING,
        "`torch.nn.functional`, einops, jaxtyping with beartype",
        "works",
        _in("looking_at_tensors", "functional_everything", "einops", "jaxtyping_and_beartype"),
    ),
    # -- threads and tasks -------------------------------------------------------------------------
    Row(
        _THREADS,
        "One module in many threads with shared inputs, threads inside `forward`, autograd threads",
        "works",
        _in(
            "threads_tasks",
            "one_module_with_shared_inputs", "threads_inside_one_guarded_call",
            "backward_in_other_threads", "data_parallel_replicas_in_threads",
        ),
    ),
    Row(
        _THREADS,
        "Modes, logs and grad modes of threads and asyncio tasks",
        "works",
        _in(
            "threads_tasks",
            "modes_are_per_thread", "logs_are_per_thread", "gradient_modes_are_per_thread",
            "tasks_with_different_modes", "tasks_that_share_an_input",
            "guarded_calls_in_executors_of_a_loop",
        ),
        "A mode or a log holds for its thread or task, and for tasks started in it.",
    ),
    # -- CUDA --------------------------------------------------------------------------------------
    Row(
        _CUDA,
        "Results, memory, autocast, side streams, pinned memory, attention kernels, device moves",
        "works, see note",
        _in(
            "cuda",
            "results_and_gradients", "memory", "memory_is_flat", "kernels",
            "nothing_waits_for_the_device", "autocast_and_scaler", "side_streams",
            "a_write_waits_for_its_stream", "a_stream_inside_forward", "pinned_memory",
            "attention_kernels", "moving_between_devices", "snapshot_on_the_device",
        ),
        "These tests need a CUDA device and are skipped elsewhere; this table was made without one.",
    ),
    Row(
        _CUDA,
        "CUDA graphs, inductor",
        "works, see note",
        _in(
            "cuda",
            "cuda_graph_capture", "graph_of_a_training_step", "graphed_callables", "inductor",
        ),
        "These tests need a CUDA device and are skipped elsewhere; this table was made without one.",
    ),
)  # fmt: skip
