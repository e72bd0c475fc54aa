"""Names of PyTorch functions whose effect their schema or name does not tell.

Everything here is data. Each table says what its members have in common and how that is known; the
sweep in ``tests/sweep/writes_sweep.py`` checks the tables against the installed PyTorch.
"""

from __future__ import annotations

# In-place by name, but only sizes, strides or flags of the tensor object change. A handle is a
# tensor object of its own, so the caller never sees it.
METADATA: frozenset[str] = frozenset(
    {
        "_coalesced_",
        "as_strided_",
        "rename_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)

# Autograd, stream or communication state; no value changes.
STATE: frozenset[str] = frozenset(
    {
        "backward",
        "detach_",
        "monitored_barrier_",
        "record_stream",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "reinforce",
        "requires_grad_",
        "retain_grad",
    }
)

# Hands out the memory itself: whoever holds the result may write it unseen. ``numpy(force=True)``
# of a CPU tensor is an alias as well. ``share_memory_`` moves the storage under every tensor that
# uses it, the caller's included.
EXPORT: frozenset[str] = frozenset(
    {
        "__array__",
        "__cuda_array_interface__",
        "__dlpack__",
        "_storage",
        "_to_dlpack",
        "_typed_storage",
        "data_ptr",
        "mutable_data_ptr",
        "numpy",
        "share_memory_",
        "storage",
        "to_dlpack",
        "untyped_storage",
    }
)

# Writers whose name does not end in one underscore.
WRITES_FIRST: frozenset[str] = frozenset({"__delitem__", "__setitem__", "__setstate__", "set_data"})

# Setters of attributes. The rest (``grad``, ``requires_grad``, hooks, ...) is state.
SETTERS_THAT_WRITE: frozenset[str] = frozenset({"data", "imag", "real"})
SETTERS_OF_METADATA: frozenset[str] = frozenset({"names"})

# Getters that return a tensor, hence possibly a view. The rest return sizes, flags and the like.
GETTERS_OF_TENSORS: frozenset[str] = frozenset(
    {"H", "T", "_base", "_grad", "data", "grad", "imag", "mH", "mT", "real"}
)

# In-place only while training and with p > 0; otherwise the input comes back as it is.
DROPOUTS: frozenset[str] = frozenset(
    {
        "alpha_dropout",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "feature_alpha_dropout",
        "feature_dropout",
    }
)

# Arguments written by collectives of torch.distributed (those that reach __torch_function__).
COLLECTIVES: dict[str, str] = {
    "all_gather": "tensor_list",
    "all_gather_coalesced": "output_tensor_lists",
    "all_gather_into_tensor": "output_tensor",
    "all_gather_single": "output_tensor",
    "all_reduce": "tensor",
    "all_reduce_coalesced": "tensors",
    "all_to_all": "output_tensor_list",
    "all_to_all_single": "output",
    "broadcast": "tensor",
    "gather": "gather_list",
    "irecv": "tensor",
    "recv": "tensor",
    "reduce": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_single": "output",
    "reduce_scatter_tensor": "output",
    "scatter": "tensor",
}

# No schema is known to the dispatcher, and no result is a tensor (or it is a new one).
NO_TENSOR_RESULT: frozenset[str] = frozenset(
    {
        "__bool__",
        "__complex__",
        "__contains__",
        "__delitem__",
        "__dir__",
        "__dlpack_device__",
        "__float__",
        "__format__",
        "__hash__",
        "__index__",
        "__int__",
        "__len__",
        "__long__",
        "__nonzero__",
        "__repr__",
        "__setitem__",
        "__setstate__",
        "_is_view",
        "_use_count",
        "backward",
        "const_data_ptr",
        "data_ptr",
        "dim_order",
        "is_shared",
        "nbytes",
        "ndimension",
        "nelement",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "storage_type",
        "tolist",
    }
)

# The schema promises a fresh result, but the kernel may hand an argument back.
ALIAS_IN_SPITE_OF_SCHEMA: frozenset[str] = frozenset({"_unsafe_view", "dequantize"})

# Composite functions (of operators that may be views) whose result is always computed anew.
FRESH_COMPOSITES: frozenset[str] = frozenset(
    {
        "__and__",
        "__or__",
        "__xor__",
        "arccos",
        "arccosh",
        "arcsin",
        "arcsinh",
        "arctan",
        "arctan2",
        "arctanh",
        "argsort",
        "clip",
        "concat",
        "concatenate",
        "conv1d",
        "conv2d",
        "conv3d",
        "cosine_similarity",
        "cross_entropy_loss",
        "divide",
        "embedding",
        "greater",
        "greater_equal",
        "group_norm",
        "isfinite",
        "layer_norm",
        "less",
        "less_equal",
        "linear",
        "log_softmax",
        "logsumexp",
        "matmul",
        "max",
        "min",
        "multiply",
        "negative",
        "nll_loss",
        "not_equal",
        "one_hot",
        "outer",
        "rms_norm",
        "scaled_dot_product_attention",
        "selu",
        "softmax",
        "square",
        "std",
        "subtract",
        "true_divide",
        "var",
        "where",
    }
)

# Functions of torch.nn.functional written in Python whose result is always computed anew, unless
# they work in place.
FRESH_FUNCTIONALS: frozenset[str] = frozenset(
    {
        "batch_norm",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "celu",
        "cross_entropy",
        "elu",
        "embedding",
        "glu",
        "group_norm",
        "hardtanh",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "leaky_relu",
        "log_softmax",
        "mish",
        "mse_loss",
        "nll_loss",
        "relu",
        "relu6",
        "selu",
        "silu",
        "smooth_l1_loss",
        "softmax",
        "softmin",
        "softsign",
        "tanhshrink",
    }
)

# In-place operators whose own result autograd does not save for backward (measured: see the sweep).
# Every other one may.
RESULT_NOT_SAVED: frozenset[str] = frozenset(
    {
        "__setitem__",
        "add_",
        "clamp_",
        "clamp_max_",
        "clamp_min_",
        "copy_",
        "div_",
        "fill_",
        "index_add_",
        "index_copy_",
        "index_fill_",
        "index_put_",
        "masked_fill_",
        "mul_",
        "neg_",
        "scatter_",
        "scatter_add_",
        "sub_",
        "zero_",
    }
)
