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

# Builds a tensor of another layout on the memory of its arguments: no view in autograd's sense, but
# a write to the one changes the other. (The public constructors of sparse tensors arrive in function
# modes and from ``torch.ops``; a subclass alone is not asked about them.)
EXPORT_OF_ARGUMENTS: frozenset[str] = frozenset(
    {
        "_nested_view_from_buffer",
        "_nested_view_from_jagged",
        "_sparse_bsc_tensor_unsafe",
        "_sparse_bsr_tensor_unsafe",
        "_sparse_compressed_tensor_unsafe",
        "_sparse_coo_tensor_unsafe",
        "_sparse_csc_tensor_unsafe",
        "_sparse_csr_tensor_unsafe",
        "sparse_bsc_tensor",
        "sparse_bsr_tensor",
        "sparse_compressed_tensor",
        "sparse_coo_tensor",
        "sparse_csc_tensor",
        "sparse_csr_tensor",
    }
)

# Writers of their first argument whose name does not say so.
WRITES_FIRST: frozenset[str] = frozenset({"__delitem__", "__setitem__", "__setstate__", "set_data"})

# The statements ``x += y`` and so on, where torch routes them under this name, and their method.
IN_PLACE_DUNDERS: dict[str, str] = {
    "__iadd__": "add_",
    "__iand__": "bitwise_and_",
    "__idiv__": "div_",
    "__ifloordiv__": "floor_divide_",
    "__ilshift__": "bitwise_left_shift_",
    "__imatmul__": "matmul_",
    "__imod__": "remainder_",
    "__imul__": "mul_",
    "__ior__": "bitwise_or_",
    "__ipow__": "pow_",
    "__irshift__": "bitwise_right_shift_",
    "__isub__": "sub_",
    "__itruediv__": "div_",
    "__ixor__": "bitwise_xor_",
}

# Arguments of batch and instance norms that are updated in training, rarely marked in schemas.
STATISTICS: tuple[str, str] = ("running_mean", "running_var")

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

# Dropouts that unsqueeze and squeeze an input of so many dimensions in place, whatever they drop.
UNBATCHED: dict[str, int] = {"dropout1d": 2, "dropout3d": 4}

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

# Whose results are no tensors, and no schema says so.
RESULT_IS_NO_TENSOR: frozenset[str] = frozenset(
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
        "dim_order",
        "is_shared",
        "ndimension",
        "nelement",
        "record_stream",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "storage_type",
        "tolist",
    }
)

# The schema promises new memory, but an argument, or a view of it, may come back.
ALIAS_IN_SPITE_OF_SCHEMA: frozenset[str] = frozenset(
    {
        "copy_sparse_to_sparse",
        "dequantize",
        "lift",
        "native_dropout",
        "resize_as_sparse",
        "set",
        "sparse_mask",
        "sparse_resize",
        "sparse_resize_and_clear",
        "to_padded_tensor",
        "unsafe_split",
        "unsafe_split_with_sizes",
    }
)

# Operators under the name of a Python protocol.
SAME_AS: dict[str, str] = {
    "__eq__": "eq",
    "__ge__": "ge",
    "__gt__": "gt",
    "__invert__": "bitwise_not",
    "__le__": "le",
    "__lt__": "lt",
    "__ne__": "ne",
}

# Composed of operators that may be views, but the result is always computed anew: nothing composed
# is trusted unless it stands here. Only what is common in models is worth a line.
FRESH_COMPOSITES: frozenset[str] = frozenset(
    {
        "__and__",
        "__or__",
        "__xor__",
        "absolute",
        "arccos",
        "arccosh",
        "arcsin",
        "arcsinh",
        "arctan",
        "arctan2",
        "arctanh",
        "argsort",
        "argwhere",
        "clip",
        "concat",
        "concatenate",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "cosine_similarity",
        "cross_entropy_loss",
        "divide",
        "dstack",
        "float_power",
        "greater",
        "greater_equal",
        "group_norm",
        "hstack",
        "isclose",
        "isfinite",
        "kron",
        "layer_norm",
        "less",
        "less_equal",
        "linalg_inv",
        "linalg_multi_dot",
        "linalg_norm",
        "linear",
        "log_softmax",
        "matmul",
        "max",
        "min",
        "multiply",
        "negative",
        "nll_loss",
        "not_equal",
        "one_hot",
        "outer",
        "pad",
        "quantile",
        "rms_norm",
        "scaled_dot_product_attention",
        "selu",
        "softmax",
        "square",
        "std",
        "subtract",
        "take_along_dim",
        "true_divide",
        "var",
        "vstack",
        "where",
    }
)

# Python functions, by module, whose result is always computed anew unless they work in place.
FRESH_PYTHON: dict[str, frozenset[str]] = {
    "torch.functional": frozenset({"cdist", "norm", "tensordot"}),
    "torch.nn.functional": frozenset(
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
            "normalize",
            "relu",
            "relu6",
            "rms_norm",
            "selu",
            "silu",
            "smooth_l1_loss",
            "softmax",
            "softmin",
            "softsign",
            "tanhshrink",
        }
    ),
    "torch._tensor": frozenset(
        {
            "__contains__",
            "__dlpack_device__",
            "__floordiv__",
            "__format__",
            "__len__",
            "__repr__",
            "__rdiv__",
            "__rfloordiv__",
            "__rlshift__",
            "__rmatmul__",
            "__rmod__",
            "__rpow__",
            "__rrshift__",
            "__rsub__",
            "dim_order",
            "is_shared",
            "norm",
            "pow",
            "pow_",
            "storage_type",
        }
    ),
}

# In-place operators that save nothing of their own result for backward, as running each of them
# showed. All others may: ``exp_``, ``sqrt_``, ``sigmoid_``, ``tanh_`` and ``relu_`` do.
RESULT_NOT_SAVED: frozenset[str] = frozenset(
    {
        "__setitem__",
        "abs_",
        "absolute_",
        "acos_",
        "add_",
        "addbmm_",
        "addcdiv_",
        "addcmul_",
        "addmm_",
        "addmv_",
        "addr_",
        "alpha_dropout_",
        "arccos_",
        "arcsin_",
        "arctan2_",
        "arctan_",
        "asin_",
        "atan2_",
        "atan_",
        "baddbmm_",
        "bernoulli_",
        "ceil_",
        "clamp_",
        "clamp_max_",
        "clamp_min_",
        "clip_",
        "conj_physical_",
        "copy_",
        "cos_",
        "cosh_",
        "cumsum_",
        "deg2rad_",
        "digamma_",
        "div_",
        "divide_",
        "dropout1d_",
        "dropout2d_",
        "dropout3d_",
        "dropout_",
        "erf_",
        "erfc_",
        "erfinv_",
        "feature_alpha_dropout_",
        "feature_dropout_",
        "fill_",
        "fill_diagonal_",
        "fix_",
        "floor_",
        "fmod_",
        "frac_",
        "hardsigmoid_",
        "hardswish_",
        "hardtanh_",
        "index_add_",
        "index_copy_",
        "index_fill_",
        "index_put_",
        "lerp_",
        "lgamma_",
        "log10_",
        "log1p_",
        "log2_",
        "log_",
        "logit_",
        "masked_fill_",
        "masked_scatter_",
        "mish_",
        "mul_",
        "multiply_",
        "mvlgamma_",
        "nan_to_num_",
        "neg_",
        "negative_",
        "normal_",
        "polygamma_",
        "put_",
        "rad2deg_",
        "relu6_",
        "remainder_",
        "renorm_",
        "round_",
        "scatter_",
        "scatter_add_",
        "sign_",
        "silu_",
        "sin_",
        "sinc_",
        "sinh_",
        "square_",
        "sub_",
        "subtract_",
        "threshold_",
        "tril_",
        "triu_",
        "true_divide_",
        "trunc_",
        "uniform_",
        "xlogy_",
        "zero_",
    }
)
