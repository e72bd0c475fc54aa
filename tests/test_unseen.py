"""What Python never sees: each path on which a write can pass the interception, and what happens.

Three outcomes: *protected* (the caller is untouched), *detected* (the caller's tensor has changed;
it is reported with the argument's name when forward returns, and strict raises), and *undetected*
(the call is that of a plain module). The tables below name them all; the last is kept short.
"""

from __future__ import annotations

import ctypes
import os
import warnings

import numpy as np
import pytest
import torch

from safemodule import (
    InputMutationError,
    InputMutationWarning,
    freeze_inputs,
    get_mode,
    mode,
    record,
)
from tests.helpers import Caller, assert_plain, same

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*",
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:.*in-place operation.*vmap:UserWarning",
)


@pytest.fixture(scope="module")
def scripted():
    """A scripted and a traced function that write their argument."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(_adds_one)
        trace = torch.jit.trace(lambda x: x.add_(1), torch.zeros(3))
    return {"script": script, "trace": trace}


def _adds_one(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


# -- protected -------------------------------------------------------------------------------------


def raw_pointer(x):
    """Ctypes on the address: asking for it makes the copy."""
    ctypes.memset(x.data_ptr(), 0xFF, 4)
    return x * 1


def raw_storage(x):
    """Bytes of the storage."""
    x.untyped_storage()[0] = 7
    return x * 1


def typed_storage(x):
    """The older storage."""
    x.storage()[0] = 7.0
    return x * 1


def storage_resized(x):
    """The storage is freed, as FSDP does."""
    x.untyped_storage().resize_(0)
    return x.shape


def array(x):
    """`numpy()`."""
    x.numpy()[0] = 7.0
    return x * 1


def asarray(x):
    """`np.asarray` and a ufunc with `out=`."""
    np.asarray(x)[0] = 7.0
    np.add(x.numpy(), 1, out=x.numpy())
    return x * 1


def buffer(x):
    """The buffer protocol of the array."""
    memoryview(x.numpy())[0] = 7.0
    return x * 1


def dlpack(x):
    """`torch.from_dlpack` and numpy's."""
    torch.from_dlpack(x).add_(1)
    np.from_dlpack(x)
    return x * 1


def set_(x):
    """`Tensor.set_`, which torch does not route."""
    x.set_(torch.ones(2))
    x.add_(1)
    return x * 1


def as_subclass(x):
    """`Tensor.as_subclass`, neither."""

    class Mine(torch.Tensor):
        pass

    x.as_subclass(Mine).add_(1)
    return x * 1


def parameter(x):
    """`nn.Parameter(x)` has memory of its own."""
    p = torch.nn.Parameter(x)
    with torch.no_grad():
        p.add_(1)
    return p.detach() * 1


def vector_to_parameters(x):
    """Helpers that assign `.data`."""
    torch.nn.utils.vector_to_parameters(torch.ones(3), [x])
    return x * 1


def share_memory(x):
    """`share_memory_` moves the storage: the copy's."""
    x.share_memory_()
    x.add_(1)
    return x * 1


def swap_tensors(x):
    """`torch.utils.swap_tensors` exchanges the module's tensor, not the caller's."""
    y = torch.ones(3)
    torch.utils.swap_tensors(x, y)
    x.add_(1)
    return x * 1, y * 1


def grad_transform(x):
    """A `torch.func` transform of a function that reads."""
    return torch.func.grad(lambda t: (t * t).sum())(x)


def vmapped_write(x):
    """`torch.func` transforms strip the subclass: they are given private copies."""
    return torch.func.vmap(lambda row: row.add_(1))(x)


def functionalized_write(x):
    """Another transform."""
    return torch.func.functionalize(lambda t: t.add_(1))(x)


def optimiser(x):
    """A fused optimiser, whose kernel moves no version counter."""
    z = x.detach().requires_grad_()
    z.grad = torch.ones_like(z)
    torch.optim.AdamW([z], lr=0.1, fused=True).step()
    return z.detach() * 1


def running_statistics(x):
    """Batch norm writes its statistics without moving the version counter."""
    torch.nn.functional.batch_norm(torch.randn(4, 3), x, torch.ones(3), training=True)
    return x * 1


PROTECTED = [
    raw_pointer, raw_storage, typed_storage, storage_resized, array, asarray, buffer, dlpack, set_,
    as_subclass, parameter, vector_to_parameters, share_memory, swap_tensors, grad_transform,
    vmapped_write, functionalized_write,
    optimiser, running_statistics,
]  # fmt: skip


@pytest.mark.parametrize("path", PROTECTED, ids=lambda path: path.__name__)
def test_protected(path):
    """The caller is untouched, and the result is that of a plain module on a clone."""
    x = torch.zeros(3)
    caller = Caller(x)
    torch.manual_seed(0)
    out = freeze_inputs(path)(x)
    caller.check()
    torch.manual_seed(0)
    expected = path(torch.zeros(3))
    assert_plain(out)
    if isinstance(out, torch.Tensor):
        same(out, expected)
    else:
        assert str(out) == str(expected)


# -- detected --------------------------------------------------------------------------------------


def scripted_function(x, tools):
    """A scripted function: TorchScript runs in C++."""
    return tools["script"](x) * 1


def traced_function(x, tools):
    """A traced one."""
    return tools["trace"](x) * 1


def tensor_constructor(x, tools):
    """`torch.Tensor(x)` makes an alias that is no handle."""
    return torch.Tensor(x).add_(1)


def make_subclass(x, tools):
    """`_make_subclass` likewise."""
    torch.Tensor._make_subclass(torch.Tensor, x).add_(1)
    return x * 1


def process_group(x, tools):
    """A raw call of a process group, a pybind function."""
    import torch.distributed as dist

    # Kept until the group is gone: a thread of it that frees a tensor waits for Python, and on torch
    # 2.6 Python waits for the thread.
    source = torch.ones(3)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.group.WORLD.allgather([[x]], [source]).wait()
    finally:
        dist.destroy_process_group()
    return x * 1


def undeclared_custom_op(x, tools):
    """A custom op that writes what its schema says it does not."""
    return torch.ops.safemodule_unseen.sneaky(x)


@torch.library.custom_op("safemodule_unseen::sneaky", mutates_args=())
def _sneaky(x: torch.Tensor) -> torch.Tensor:
    x.sin_()
    x.add_(1)
    return x * 3


def closure(x, tools):
    """The caller's own tensor, reached by another way than the argument."""
    tools["caller"].add_(1)
    return x * 1


DETECTED = [
    scripted_function, traced_function, tensor_constructor,
    make_subclass, process_group, undeclared_custom_op, closure,
]  # fmt: skip
detected = pytest.mark.parametrize("path", DETECTED, ids=lambda path: path.__name__)


def guarded(path, scripted):
    """Return the guarded form of a path, and its argument."""
    x = torch.zeros(3)
    tools = {**scripted, "caller": x}

    @freeze_inputs
    def forward(values):
        return path(values, tools)

    return forward, x


@detected
def test_detected(path, scripted):
    """On record with the argument's name, shape and the call's forward; results as in plain."""
    forward, x = guarded(path, scripted)
    with record() as log:
        out = forward(x)
    assert x.tolist() == [1, 1, 1]
    assert_plain(out)
    (m,) = log
    assert (m.kind, m.argument, m.shape, m.dtype) == ("unseen", "values", (3,), "float32")
    assert (m.filename, m.function) == (__file__, "forward")
    assert m.module.endswith("guarded.<locals>.forward")


@detected
def test_detected_in_strict_mode(path, scripted):
    """Strict raises, and names the argument; the text does not claim that nothing has changed."""
    forward, x = guarded(path, scripted)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        forward(x)
    text = str(caught.value)
    assert "argument values (float32[3] cpu)" in text
    assert "the caller's tensor has changed" in text
    assert "Nothing has changed" not in text
    assert caught.value.mutation.kind == "unseen"
    assert get_mode() == "copy"


@detected
def test_detected_in_warn_mode(path, scripted):
    """And warn warns."""
    forward, x = guarded(path, scripted)
    with mode("warn"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", InputMutationWarning)
        forward(x)
    found = [w.message for w in seen if isinstance(w.message, InputMutationWarning)]
    assert ["argument values" in str(w) for w in found] == [True]


def test_the_call_after_a_detected_write_is_clean(scripted):
    """A detected write is reported once, by the call that it happened in."""
    forward, x = guarded(scripted_function, scripted)
    reads = freeze_inputs(lambda x: x * 1)
    forward(x)
    with record() as log:
        reads(x)
    assert list(log) == []


def test_a_redirected_argument_is_not_reached(scripted):
    """Once the module has its own copy, even a scripted function writes that."""

    @freeze_inputs
    def forward(x):
        x.mul_(2)
        scripted["script"](x)
        return x * 1

    x = torch.ones(3)
    caller = Caller(x)
    assert forward(x).tolist() == [3, 3, 3]
    caller.check()


def test_an_unguarded_scripted_module_that_reads(scripted):
    """Scripted code that only reads works, and gradients flow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.jit.script(torch.nn.Linear(3, 2))
    x = torch.ones(3, requires_grad=True)
    freeze_inputs(lambda x: net(x))(x).sum().backward()
    same(x.grad, net.weight.sum(0).detach())


def test_exception_and_unseen_write(scripted):
    """If forward raises, that exception is what the caller gets."""

    @freeze_inputs
    def forward(x):
        scripted["script"](x)
        raise KeyError("mine")

    with mode("strict"), pytest.raises(KeyError, match="mine"):
        forward(torch.zeros(3))


EXTENSION = "SAFEMODULE_TEST_EXTENSION"


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get(EXTENSION), reason=f"compiles C++ for a minute: set {EXTENSION}=1"
)
def test_detected_in_a_cpp_extension(tmp_path):
    """A C++ extension that writes its argument is detected."""
    from torch.utils.cpp_extension import load_inline

    extension = load_inline(
        "safemodule_unseen_extension",
        cpp_sources="torch::Tensor bump(torch::Tensor x) { return x.add_(1); }",
        functions=["bump"],
        build_directory=str(tmp_path),
    )
    x = torch.zeros(3)
    with record() as log:
        freeze_inputs(lambda x: extension.bump(x))(x)
    assert [(m.kind, m.argument) for m in log] == [("unseen", "x")]


# -- undetected ------------------------------------------------------------------------------------


def numpy_alias(x, alias):
    """An array that the caller made before the call shares memory and moves no counter."""
    alias["numpy"][0] = 7.0
    return x * 1


def dlpack_alias(x, alias):
    """A DLPack alias has a version counter of its own."""
    alias["dlpack"][0] = 7.0
    return x * 1


def data_alias(x, alias):
    """So has `.data`."""
    alias["data"][0] = 7.0
    return x * 1


def to_dlpack(x, alias):
    """The older `to_dlpack` is a C function that no subclass can route."""
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))[0] = 7.0
    return x * 1


UNDETECTED = [numpy_alias, dlpack_alias, data_alias, to_dlpack]


@pytest.mark.parametrize("path", UNDETECTED, ids=lambda path: path.__name__)
def test_undetected(path):
    """The call is that of a plain module, damage included, and nothing claims otherwise."""
    x = torch.zeros(3)
    alias = {"numpy": x.numpy(), "dlpack": torch.from_dlpack(x), "data": x.data}
    with record() as log:
        out = freeze_inputs(lambda x: path(x, alias))(x)
    assert x.tolist() == out.tolist() == [7, 0, 0]
    assert list(log) == []


@pytest.mark.parametrize("path", UNDETECTED[:3], ids=lambda path: path.__name__)
def test_snapshot_protects_the_module_from_aliases(path):
    """What the module computes with is a snapshot, where it asks for one."""
    x = torch.zeros(3)
    alias = {"numpy": x.numpy(), "dlpack": torch.from_dlpack(x), "data": x.data}
    out = freeze_inputs(snapshot=True)(lambda x: path(x, alias))(x)
    assert out.tolist() == [0, 0, 0]
    assert x.tolist() == [7, 0, 0]
