"""Which arguments does a call write? Asked without running it, then checked by running it."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import io
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from safemodule import _writes, _writes_tables
from safemodule._writes import EFFECTS, Kind, effect_of
from tests.sweep import writes_sweep


class Untouchable(Tensor):
    """A tensor that no function may look at."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")


def marked(*shape, dtype=torch.float32):
    """Return an untouchable tensor of this shape."""
    return torch.ones(shape, dtype=dtype).as_subclass(Untouchable)


A, B, C, D = (marked(2, 3) for _ in range(4))
WHOLE = marked(4, dtype=torch.int64)
STATS = marked(3), marked(3)
AFFINE = marked(3), marked(3)
NAMES = {id(t): n for n, t in {"A": A, "B": B, "C": C, "D": D, "WHOLE": WHOLE}.items()}
NAMES |= {id(STATS[0]): "mean", id(STATS[1]): "var"}


def call(func, *args, **kwargs):
    """Hold one call, not run."""
    return func, args, kwargs


WRITES = {
    # methods, dunders, setters
    "add_": (call(Tensor.add_, A, B), "A"),
    "copy_": (call(Tensor.copy_, A, B), "A"),
    "exp_": (call(Tensor.exp_, A), "A"),
    "random_": (call(Tensor.random_, A), "A"),
    "apply_": (call(Tensor.apply_, A, abs), "A"),
    "map_": (call(Tensor.map_, A, B, max), "A"),
    "map2_": (call(Tensor.map2_, A, B, C, max), "A"),
    "index_put_": (call(Tensor.index_put_, A, [WHOLE], B), "A"),
    "put_": (call(Tensor.put_, A, WHOLE, B), "A"),
    "__setitem__": (call(Tensor.__setitem__, A, B, C), "A"),
    "__ior__": (call(Tensor.__ior__, A, B), "A"),
    "__ilshift__": (call(Tensor.__ilshift__, A, 1), "A"),
    "pow_": (call(Tensor.__ipow__, A, 2), "A"),
    "div_": (call(Tensor.div_, A, B), "A"),
    "data=": (call(Tensor.data.__set__, A, B), "A"),
    "real=": (call(Tensor.real.__set__, A, B), "A"),
    "imag=": (call(Tensor.imag.__set__, A, B), "A"),
    "__setstate__": (call(Tensor.__setstate__, A, ()), "A"),
    "module_load": (call(Tensor.module_load, A, B), "A"),
    "relu_": (call(torch.relu_, input=A), "A"),
    "embedding_renorm_": (call(torch.embedding_renorm_, A, WHOLE, 1.0, 2.0), "A"),
    "init.uniform_": (call(torch.nn.init.uniform_, tensor=A, a=0.0), "A"),
    "init.constant_": (call(torch.nn.init.constant_, A, 1.0), "A"),
    # sizes count
    "resize_": (call(Tensor.resize_, A, 3, 3), "A"),
    "resize_ tuple": (call(Tensor.resize_, A, (7,)), "A"),
    "resize_as_": (call(Tensor.resize_as_, A, WHOLE), "A"),
    "resize_ format": (
        call(Tensor.resize_, A, (2, 3), memory_format=torch.contiguous_format),
        "A",
    ),
    # with out=
    "add(out=)": (call(torch.add, A, B, out=C), "C"),
    "cummax(out=)": (call(torch.cummax, A, 0, out=(B, C)), "B C"),
    "linalg_inv(out=)": (call(torch.linalg.inv, A, out=B), "B"),
    "special_erf(out=)": (call(torch.special.erf, A, out=B), "B"),
    "fft_fft(out=)": (call(torch.fft.fft, A, out=B), "B"),
    "zeros(out=)": (call(torch.zeros, 2, 3, out=A), "A"),
    "norm(out=)": (call(torch.functional.norm, A, 2, None, False, B), "B"),
    "tensordot(out=)": (call(torch.functional.tensordot, A, B, dims=1, out=C), "C"),
    "normalize(out=)": (call(F.normalize, A, 2.0, 1, 1e-12, B), "B"),
    # with inplace=True
    "relu": (call(F.relu, A, True), "A"),
    "leaky_relu": (call(F.leaky_relu, A, 0.1, inplace=True), "A"),
    "threshold": (call(F.threshold, A, 0.0, 0.0, True), "A"),
    "rrelu": (call(F.rrelu, A, training=False, inplace=True), "A"),
    "dropout": (call(F.dropout, A, p=0.5, inplace=True), "A"),
    "dropout positional": (call(F.dropout, A, 0.5, True, True), "A"),
    "dropout_": (call(torch.dropout_, A, 0.5, True), "A"),
    "dropout1d unbatched": (call(F.dropout1d, A, 0.5, training=False, inplace=True), "A"),
    # running statistics
    "F.batch_norm": (call(F.batch_norm, A, *STATS, training=True), "mean var"),
    "F.batch_norm positional": (call(F.batch_norm, A, *STATS, *AFFINE, True), "mean var"),
    "F.instance_norm": (call(F.instance_norm, A, *STATS), "mean var"),
    "torch.batch_norm": (
        call(torch.batch_norm, A, *AFFINE, *STATS, True, 0.1, 1e-5, False),
        "mean var",
    ),
    "torch.instance_norm": (
        call(torch.instance_norm, A, *AFFINE, *STATS, True, 0.1, 1e-5, False),
        "mean var",
    ),
    "torch.native_batch_norm": (
        call(torch.native_batch_norm, A, *AFFINE, *STATS, True, 0.1, 1e-5),
        "mean var",
    ),
    "torch.native_batch_norm out=": (
        call(torch.native_batch_norm, A, *AFFINE, *STATS, True, 0.1, 1e-5, out=(B, C, D)),
        "mean var B C D",
    ),
    "torch._native_batch_norm_legit": (
        call(torch._native_batch_norm_legit, A, *AFFINE, *STATS, True, 0.1, 1e-5),
        "mean var",
    ),
    "torch._batch_norm_impl_index": (
        call(torch._batch_norm_impl_index, A, *AFFINE, *STATS, True, 0.1, 1e-5, False),
        "mean var",
    ),
    "torch.cudnn_batch_norm": (
        call(torch.cudnn_batch_norm, A, *AFFINE, *STATS, True, 0.1, 1e-5),
        "mean var",
    ),
    "torch.miopen_batch_norm": (
        call(torch.miopen_batch_norm, A, *AFFINE, *STATS, True, 0.1, 1e-5),
        "mean var",
    ),
    "torch.batch_norm_update_stats": (
        call(torch.batch_norm_update_stats, A, *STATS, 0.1),
        "mean var",
    ),
    "torch.batch_norm_gather_stats": (
        call(torch.batch_norm_gather_stats, A, B, C, *STATS, 0.1, 1e-5, 2),
        "mean var",
    ),
    "torch.batch_norm_gather_stats_with_counts": (
        call(torch.batch_norm_gather_stats_with_counts, A, B, C, *STATS, 0.1, 1e-5, WHOLE),
        "mean var",
    ),
    "aten.batch_norm": (
        call(torch.ops.aten.batch_norm, A, *AFFINE, *STATS, True, 0.1, 1e-5, False),
        "mean var",
    ),
    "aten.native_batch_norm.out": (
        call(
            torch.ops.aten.native_batch_norm.out,
            *(A, *AFFINE, *STATS, True, 0.1, 1e-5),
            out=B,
            save_mean=C,
            save_invstd=D,
        ),
        "mean var B C D",
    ),
    "aten._batch_norm_with_update": (
        call(torch.ops.aten._batch_norm_with_update, A, *AFFINE, *STATS, 0.1, 1e-5),
        "mean var",
    ),
    # embeddings
    "F.embedding": (call(F.embedding, WHOLE, A, max_norm=1.0), "A"),
    "F.embedding positional": (call(F.embedding, WHOLE, A, None, 0.0), "A"),
    "F.embedding_bag": (call(F.embedding_bag, WHOLE, A, offsets=WHOLE, max_norm=1.0), "A"),
    "F.embedding_bag old order": (call(F.embedding_bag, A, WHOLE, max_norm=1.0), "A"),
    # lists
    "_foreach_add_": (call(torch._foreach_add_, [A, B], [C, D]), "A B"),
    "_foreach_copy_": (call(torch._foreach_copy_, (A, B), (C, D)), "A B"),
    "_foreach_zero_": (call(torch._foreach_zero_, self=[A, B]), "A B"),
    "_fused_sgd_": (
        call(torch._fused_sgd_, [A], [B], [C], lr=0.1, momentum=0.9),
        "A C",
    ),
    "_fused_sgd_ unscaling": (
        call(torch._fused_sgd_, [A], [B], [C], lr=0.1, momentum=0.9, grad_scale=D),
        "A B C",
    ),
    "_fused_adam_": (
        call(torch._fused_adam_, [A], [B], [C], [D], [], [WHOLE], lr=0.1, amsgrad=False),
        "A C D",
    ),
    "_amp_foreach_non_finite_check_and_unscale_": (
        call(torch._amp_foreach_non_finite_check_and_unscale_, [A, B], C, D),
        "A B C",
    ),
    "rrelu_with_noise": (call(torch._C._nn.rrelu_with_noise, A, B, training=True), "B"),
    "fused_moving_avg_obs_fake_quant": (
        call(torch.fused_moving_avg_obs_fake_quant, A, WHOLE, WHOLE, B, C, D, STATS[0], 0.1),
        "B C D mean",
    ),
    # torch.ops
    "aten.add_": (call(torch.ops.aten.add_, A, B), "A"),
    "aten.add_.Tensor": (call(torch.ops.aten.add_.Tensor, A, B), "A"),
    "aten.add_ by name": (call(torch.ops.aten.add_.Tensor, self=A, other=B), "A"),
    "aten.add.out": (call(torch.ops.aten.add.out, A, B, out=C), "C"),
    "aten.add out=": (call(torch.ops.aten.add, A, B, out=C), "C"),
    "aten.cummax.out": (call(torch.ops.aten.cummax.out, A, 0, values=B, indices=C), "B C"),
    "aten._foreach_mul_": (call(torch.ops.aten._foreach_mul_, [A, B], 2.0), "A B"),
    "aten.dropout_": (call(torch.ops.aten.dropout_, A, 0.5, True), "A"),
    "aten.set_data": (call(torch.ops.aten.set_data, A, B), "A"),
    "aten.resize_": (call(torch.ops.aten.resize_, A, [7]), "A"),
}

if "out" in torch.ops.aten.fbgemm_linear_fp16_weight.overloads():  # not in 2.6
    WRITES["positional out"] = (call(torch.fbgemm_linear_fp16_weight, A, B, C, D), "D")

WRITES_NOTHING = {
    "relu": call(F.relu, A),
    "relu inplace=False": call(F.relu, A, inplace=False),
    "dropout eval": call(F.dropout, A, training=False, inplace=True),
    "dropout p=0": call(F.dropout, A, 0.0, inplace=True),
    "dropout not in place": call(F.dropout, A),
    "dropout_ eval": call(torch.dropout_, A, 0.5, False),
    "dropout_ p=0": call(torch.dropout_, A, p=0.0, train=True),
    "alpha_dropout_ eval": call(torch.alpha_dropout_, A, 0.5, train=False),
    "aten.dropout_ eval": call(torch.ops.aten.dropout_, A, 0.5, False),
    "dropout1d batched, eval": call(F.dropout1d, marked(2, 3, 4), training=False, inplace=True),
    "batch_norm eval": call(F.batch_norm, A, *STATS),
    "batch_norm without statistics": call(F.batch_norm, A, None, None, training=True),
    "torch.batch_norm eval": call(torch.batch_norm, A, *AFFINE, *STATS, False, 0.1, 1e-5, False),
    "_native_batch_norm_legit eval": call(
        torch._native_batch_norm_legit, A, *AFFINE, *STATS, False, 0.1, 1e-5
    ),
    "aten._native_batch_norm_legit eval": call(
        torch.ops.aten._native_batch_norm_legit.default, A, *AFFINE, *STATS, False, 0.1, 1e-5
    ),
    "aten._native_batch_norm_legit packet eval": call(
        torch.ops.aten._native_batch_norm_legit, A, *AFFINE, *STATS, False, 0.1, 1e-5
    ),
    "native_batch_norm_backward": call(
        torch.ops.aten.native_batch_norm_backward.default,
        *(A, B, AFFINE[0], *STATS, C, D, True, 1e-5, [True, True, True]),
    ),
    "batch_norm_elemt": call(torch.batch_norm_elemt, A, *AFFINE, *STATS, 1e-5),
    "instance_norm by running statistics": call(F.instance_norm, A, *STATS, use_input_stats=False),
    "embedding": call(F.embedding, WHOLE, A),
    "embedding_bag": call(F.embedding_bag, WHOLE, A, offsets=WHOLE),
    "add": call(torch.add, A, B),
    "add out=None": call(torch.add, A, B, out=None),
    "norm": call(torch.functional.norm, A),
    "resize_ to its own size": call(Tensor.resize_, A, 2, 3),
    "resize_ to its own sizes": call(Tensor.resize_, A, (2, 3)),
    "resize_as_ of its own size": call(Tensor.resize_as_, A, B),
    "module_load by assignment": call(Tensor.module_load, A, B, assign=True),
    "aten.add": call(torch.ops.aten.add, A, B),
    "_foreach_add_ of nothing": call(torch._foreach_add_, [], 1.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_written_arguments(name):
    """Each call names the arguments it would write, in order, and touches none of them."""
    (func, args, kwargs), expected = WRITES[name]
    effect = effect_of(func)
    assert effect.kind is Kind.WRITE
    assert " ".join(NAMES[id(tensor)] for tensor in effect.written(args, kwargs)) == expected


@pytest.mark.parametrize("name", WRITES_NOTHING)
def test_nothing_written(name):
    """A function that can write names nothing where this call does not."""
    func, args, kwargs = WRITES_NOTHING[name]
    effect = effect_of(func)
    assert effect.kind is Kind.WRITE or effect.written is None
    assert effect.kind is Kind.READ or list(effect.written(args, kwargs)) == []


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (Tensor.add_, "add_"),
        (Tensor.__setitem__, "__setitem__"),
        (Tensor.__ior__, "__ior__"),
        (Tensor.__ipow__, "pow_"),
        (torch.add, "add(out=)"),
        (torch.functional.norm, "norm(out=)"),
        (F.relu, "relu(inplace=True)"),
        (F.threshold, "threshold(inplace=True)"),
        (F.batch_norm, "batch_norm(training=True)"),
        (F.instance_norm, "instance_norm(use_input_stats=True)"),
        (torch.batch_norm_update_stats, "batch_norm_update_stats"),
        (F.embedding, "embedding(max_norm=)"),
        (Tensor.data.__set__, "data="),
        (Tensor.grad.__delete__, "del grad"),
        (Tensor.shape.__get__, "shape"),
        (Tensor.__cuda_array_interface__.__get__, "__cuda_array_interface__"),
        (torch.ops.aten.add_, "aten.add_"),
        (torch.ops.aten.add_.Tensor, "aten.add_.Tensor"),
        (torch.ops.aten.relu_.default, "aten.relu_"),
    ],
)
def test_names(func, name):
    """An operator has the name its user knows it by."""
    assert effect_of(func).name == name


@pytest.mark.parametrize(
    ("kind", "funcs"),
    [
        (
            Kind.METADATA,
            [
                Tensor.squeeze_,
                Tensor.unsqueeze_,
                Tensor.t_,
                Tensor.transpose_,
                Tensor.swapaxes_,
                Tensor.swapdims_,
                Tensor.as_strided_,
                torch.ops.aten.squeeze_.dim,
            ],
        ),
        (
            Kind.STATE,
            [
                Tensor.requires_grad_,
                Tensor.detach_,
                Tensor.retain_grad,
                Tensor.register_hook,
                Tensor.grad.__set__,
                Tensor.requires_grad.__set__,
                Tensor._backward_hooks.__set__,
                Tensor.backward,
                torch.autograd.backward,
                torch.ops.aten.record_stream,
            ],
        ),
        (
            Kind.EXPORT,
            [
                Tensor.numpy,
                Tensor.__array__,
                Tensor.__dlpack__,
                Tensor.data_ptr,
                Tensor.storage,
                Tensor.untyped_storage,
                Tensor._typed_storage,
                Tensor.share_memory_,
                Tensor.__cuda_array_interface__.__get__,
                torch.sparse_coo_tensor,
                torch.sparse_csr_tensor,
                torch._nested_view_from_jagged,
            ],
        ),
        (
            Kind.READ,
            [
                Tensor.add,
                Tensor.view,
                Tensor.size,
                Tensor.__getitem__,
                Tensor.item,
                Tensor.tolist,
                Tensor.pin_memory,
                Tensor.T.__get__,
                Tensor.data.__get__,
                Tensor.clone,
                F.softmax,
                Tensor.__deepcopy__,
                torch.ops.aten.view.default,
            ],
        ),
    ],
)
def test_kinds(kind, funcs):
    """Functions that write no value are told apart by what else they do."""
    assert [(f, effect_of(f).kind) for f in funcs] == [(f, kind) for f in funcs]
    assert all((effect_of(f).written is None) == (kind is not Kind.EXPORT) for f in funcs)


def test_exports_name_what_they_hand_out():
    """The memory of `self`, or that of all parts of a sparse tensor."""
    assert effect_of(Tensor.numpy).written((A,), {"force": True})[0] is A
    parts = effect_of(torch.sparse_coo_tensor).written((WHOLE, A, (4,)), {})
    assert [NAMES[id(tensor)] for tensor in parts] == ["WHOLE", "A"]


def test_sparse_tensors_share_memory():
    """The reason why their constructors count as exports: no views, and yet the same memory."""
    values = torch.ones(2)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), values, (3,), check_invariants=True)
    assert not sparse._is_view()
    sparse._values().mul_(2)
    assert values.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "func",
    [
        Tensor.view,
        Tensor.reshape,
        Tensor.contiguous,
        Tensor.to,
        Tensor.float,
        Tensor.__getitem__,
        Tensor.detach,
        Tensor.T.__get__,
        Tensor.data.__get__,
        Tensor.grad.__get__,
        Tensor.split,
        Tensor.conj,
        torch.dropout_,
        torch.unsafe_split,
        torch.ops.aten._unsafe_view,
        torch.dequantize,
        torch.ops.aten.dequantize.self,
        torch.einsum,
        torch.meshgrid,
        F.dropout,
        F.multi_head_attention_forward,
        torch.ops.aten.alias.default,
        torch.ops.aten.expand,
        Tensor.__reduce_ex__,
        functools.partial(torch.view_as_real),
    ],
)
def test_may_alias(func):
    """What returns views, or may return its argument, is never promised to be fresh."""
    assert effect_of(func).may_alias


@pytest.mark.parametrize(
    "func",
    [
        Tensor.add,
        Tensor.__eq__,
        Tensor.__rsub__,
        Tensor.__pow__,
        Tensor.matmul,
        Tensor.sum,
        Tensor.clone,
        Tensor.size,
        Tensor.dim,
        Tensor.item,
        Tensor.__len__,
        Tensor.shape.__get__,
        Tensor.dtype.__get__,
        Tensor.is_leaf.__get__,
        Tensor.grad_fn.__get__,
        Tensor.add_,
        Tensor.__setitem__,
        Tensor.tolist,
        Tensor.norm,
        torch.norm,
        torch.cdist,
        torch.tensordot,
        F.normalize,
        torch.cat,
        torch.where,
        torch.add,
        F.linear,
        F.conv2d,
        F.relu,
        F.softmax,
        F.layer_norm,
        F.gelu,
        torch.ops.aten.add.Tensor,
        torch.ops.aten.mm,
    ],
)
def test_never_aliases(func):
    """What runs often and computes anew is known to, so that no result need be looked at."""
    assert not effect_of(func).may_alias


def test_calls_that_torch_will_refuse():
    """What is missing or of a wrong type is torch's to complain about."""
    assert effect_of(Tensor.add_).written((), {}) == ()
    assert effect_of(Tensor.resize_as_).written((A, (2, 3)), {}) == (A,)
    rows = [[0.0]]
    assert effect_of(F.embedding).written((WHOLE, rows), {"max_norm": 1.0}) == (rows,)


def test_effects_are_kept():
    """The same function gives the same effect, also where torch makes a new object each time."""
    assert Tensor.shape.__get__ is not Tensor.shape.__get__
    assert effect_of(Tensor.shape.__get__) is effect_of(Tensor.shape.__get__)
    assert effect_of(Tensor.add_) is EFFECTS[Tensor.add_]


def test_effect_of_unhashable_callable():
    """A function object that cannot be a key is judged each time."""

    class Scale:
        __hash__ = None
        __name__ = "scale_"

        def __call__(self, tensor):
            return tensor.mul_(2)

    assert effect_of(Scale()).written((A,), {})[0] is A


def test_no_tensor_is_kept_alive():
    """A method bound to a tensor is judged, not kept."""
    x = torch.zeros(2)
    alive = weakref.ref(x)
    before = len(EFFECTS)
    assert effect_of(x.add_).kind is Kind.WRITE
    assert len(EFFECTS) == before
    del x
    gc.collect()
    assert alive() is None


def test_functions_without_end(monkeypatch):
    """A program that makes functions as it runs does not fill the memory."""
    monkeypatch.setattr(_writes, "_MOST_EFFECTS", len(EFFECTS))
    before = len(EFFECTS)
    for _ in range(3):
        assert effect_of(lambda tensor: tensor).kind is Kind.READ
    assert len(EFFECTS) == before


def test_function_of_a_library():
    """A function that torch does not know is judged by its name and its signature."""

    def clip_boxes_(boxes, size):
        return boxes.clamp_(0, size)

    def scale(size, tensor, inplace=False):
        return tensor

    def project(tensor, *, out=None):
        return tensor

    assert effect_of(clip_boxes_).written((), {"size": 3, "boxes": A})[0] is A
    assert effect_of(clip_boxes_).name == "clip_boxes_"
    assert effect_of(scale).name == "scale(inplace=True)"
    assert effect_of(project).written((A,), {"out": B})[0] is B


@pytest.fixture
def library():
    """Return a torch library of this test."""
    with torch.library._scoped_library("safemodule_test", "DEF") as made:
        yield made


def test_custom_operators(library):
    """The schema says what is written: by position, by keyword, in a list, by overload."""
    library.define("bump(Tensor x, Tensor(a!) y, *, Tensor(b!)? z=None) -> Tensor")
    library.define("bump_all(Tensor(a!)[] xs, Tensor y) -> ()")
    library.define("pick.one(Tensor x, Tensor(a!) y) -> ()")
    library.define("pick.two(Tensor(a!) x, Tensor y, int n) -> ()")
    library.define("look(Tensor x) -> Tensor")
    library.define("scale_(Tensor x, Tensor y) -> Tensor")
    ops = torch.ops.safemodule_test

    def written(func, *args, **kwargs):
        return " ".join(NAMES[id(t)] for t in effect_of(func).written(args, kwargs))

    assert written(ops.bump, A, B) == "B"
    assert written(ops.bump.default, A, B, z=C) == "B C"
    assert written(ops.bump, x=A, y=B, z=C) == "B C"
    assert written(ops.bump_all, [A, B], C) == "A B"
    assert written(ops.pick, A, B) == "B"
    assert written(ops.pick, A, B, 1) == "A"
    assert written(ops.pick, A, B, n=1) == "A"
    assert written(ops.pick.one, A, B) == "B"
    assert written(ops.scale_, A, B) == "A"  # the name, where the schema marks nothing
    assert effect_of(ops.look).kind is Kind.READ
    assert effect_of(ops.look).may_alias  # nobody holds a custom operator to its schema
    assert effect_of(ops.bump).name == "safemodule_test.bump"


def test_custom_op_decorator():
    """`torch.library.custom_op(mutates_args=...)` arrives as its overload."""

    @torch.library.custom_op("safemodule_test_op::shift", mutates_args=("y",))
    def shift(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return x + y

    overload = torch.ops.safemodule_test_op.shift.default
    assert effect_of(overload).written((A, B), {})[0] is B
    watcher = writes_sweep.Watcher()
    with watcher:
        shift(torch.ones(2), torch.ones(2))
    assert overload in watcher.functions
    assert watcher.faults == []


def test_collectives_name_their_parameters():
    """The table of torch.distributed agrees with the functions of the installed version."""
    distributed = pytest.importorskip("torch.distributed.distributed_c10d")
    known = {n: getattr(distributed, n, None) for n in _writes_tables.COLLECTIVES}
    assert known["all_reduce"] is not None
    for name, func in known.items():
        if func is not None and func.__name__ == name:
            parameter = _writes_tables.COLLECTIVES[name]
            assert parameter in inspect.signature(func).parameters
            target = effect_of(func).written((), {parameter: [A, [B]]})
            assert [NAMES[id(tensor)] for tensor in target] == ["A", "B"]


def real(shape=(2, 3, 4), dtype=torch.float32):
    """Return a plain tensor."""
    return torch.rand(shape).add(0.1).to(dtype)


def statistics():
    """Return weight, bias, mean and variance of three channels."""
    return torch.rand(3), torch.rand(3), torch.rand(3), torch.rand(3)


REAL_CALLS = {
    "F.batch_norm": lambda: F.batch_norm(real(), *statistics()[2:], training=True),
    "F.batch_norm eval": lambda: F.batch_norm(real(), *statistics()[2:]),
    "torch.batch_norm": lambda: torch.batch_norm(real(), *statistics(), True, 0.1, 1e-5, False),
    "torch.instance_norm": lambda: torch.instance_norm(
        real(), *statistics(), True, 0.1, 1e-5, False
    ),
    "native_batch_norm": lambda: torch.native_batch_norm(real(), *statistics(), True, 0.1, 1e-5),
    "_native_batch_norm_legit": lambda: torch._native_batch_norm_legit(
        real(), *statistics(), True, 0.1, 1e-5
    ),
    "_batch_norm_impl_index": lambda: torch._batch_norm_impl_index(
        real(), *statistics(), True, 0.1, 1e-5, False
    ),
    "batch_norm_update_stats": lambda: torch.batch_norm_update_stats(
        real(), *statistics()[2:], 0.1
    ),
    "aten.batch_norm": lambda: torch.ops.aten.batch_norm(
        real(), *statistics(), True, 0.1, 1e-5, False
    ),
    "BatchNorm1d": lambda: torch.nn.BatchNorm1d(3)(real()),
    "InstanceNorm1d": lambda: torch.nn.InstanceNorm1d(3, track_running_stats=True)(real()),
    "F.embedding": lambda: F.embedding(torch.tensor([0, 1]), real((4, 3)) * 9, max_norm=1.0),
    "F.embedding_bag": lambda: F.embedding_bag(
        torch.tensor([[0, 1]]), real((4, 3)) * 9, max_norm=1.0
    ),
    "nn.init": lambda: torch.nn.init.kaiming_uniform_(torch.nn.init.normal_(real())),
    "x += y": lambda: real().__iadd__(1),
    "x **= 2": lambda: real().__ipow__(2),
    "x |= y": lambda: real(dtype=torch.int64).__ior__(3),
    "x <<= 1": lambda: (real(dtype=torch.int64) + 1).__ilshift__(1),
    "x[i] = y": lambda: real().__setitem__(0, 2.0),
    "x.data = y": lambda: setattr(real(), "data", real((5,))),
    "copy_": lambda: real().copy_(real()),
    "resize_": lambda: real().resize_(2, 2),
    "resize_as_": lambda: real().resize_as_(real((2, 2))),
    "resize_ to its own size": lambda: real().resize_(2, 3, 4),
    "apply_": lambda: real().apply_(lambda value: value + 1),
    "map_": lambda: real().map_(real(), lambda a, b: a + b),
    "dropout1d": lambda: F.dropout1d(real((2, 3)), training=False, inplace=True),
    "dropout3d": lambda: F.dropout3d(real((2, 3, 2, 2)), training=False, inplace=True),
    "threshold": lambda: F.threshold(real(), 0.5, 0.0, inplace=True),
    "norm out": lambda: torch.norm(real((3,)), out=torch.zeros(())),
    "normalize out": lambda: F.normalize(real(), out=real()),
    "tensordot out": lambda: torch.tensordot(real((2, 3)), real((3, 2)), 1, out=real((2, 2))),
    "rrelu_with_noise": lambda: torch._C._nn.rrelu_with_noise(
        -real(), torch.zeros(2, 3, 4), training=True
    ),
    "_fused_sgd_": lambda: torch._fused_sgd_(
        [real()],
        [real()],
        [real()],
        weight_decay=0.0,
        momentum=0.9,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    ),
    "_fused_adamw_": lambda: torch._fused_adamw_(
        *([real()], [real()], [real()], [real()], [], [torch.tensor(1.0)]),
        lr=0.1,
        beta1=0.9,
        beta2=0.99,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    ),
    "_amp_foreach": lambda: torch._amp_foreach_non_finite_check_and_unscale_(
        [torch.tensor([1.0, torch.inf])], torch.zeros(1), torch.full((1,), 0.5)
    ),
    "getters": lambda: [getattr(real(), n) for n in ("T", "mT", "data", "real", "grad", "shape")],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REAL_CALLS)
def test_real_calls_change_what_is_named(name):
    """Run, each call changes exactly the arguments it is said to write."""
    watcher = writes_sweep.Watcher()
    watcher.where = name
    with watcher:
        REAL_CALLS[name]()
    assert watcher.calls > 0
    assert watcher.faults == []


@pytest.mark.parametrize("saved", [torch.exp, torch.sqrt, torch.sigmoid, torch.tanh, torch.relu])
def test_operators_that_save_their_result(saved):
    """In place, these save their own result for backward, and are known to."""
    in_place = getattr(Tensor, f"{saved.__name__}_")
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    assert writes_sweep.saves_result(in_place, (x, (), {}))[1]
    assert effect_of(in_place).saves_result


def test_operators_that_save_no_result():
    """What is said to save nothing of its result lets the result be written before backward."""
    seen = set()
    for func, given in writes_sweep.in_place_calls():
        found = writes_sweep.saves_result(func, (given[0], given[1:], {}))
        if found is not None:
            effect, saves = found
            seen.add(effect.name)
            assert effect.saves_result or not saves, effect.name
    assert seen >= {"__setitem__", "add_", "mul_", "copy_", "zero_", "dropout_", "hardswish_"}


def test_sample_of_the_sweep():
    """A seeded sample of PyTorch's operator database: no miss, no false alarm, no unsaid alias."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = writes_sweep.main(["--sample", "30", "--samples", "2", "--seed", "1"])
    assert code == 0, printed.getvalue()
    assert "misses 0, false alarms 0, unsaid aliases 0" in printed.getvalue()
