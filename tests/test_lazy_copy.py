"""Snapshots: independent of the caller in both directions, and lazy only where that is safe."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from safemodule import _lazy_copy, freeze_inputs
from safemodule._lazy_copy import may_share, snapshot
from tests.helpers import Caller, same

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")

KINDS = {
    "plain": lambda: torch.arange(6.0).reshape(2, 3).clone(),
    "leaf": lambda: torch.arange(6.0).requires_grad_(),
    "non-leaf": lambda: torch.arange(6.0).requires_grad_() * 2,
    "slice": lambda: torch.arange(6.0)[2:4],
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "expanded": lambda: torch.arange(3.0).expand(2, 3),
    "channels_last": lambda: torch.rand(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "empty": lambda: torch.zeros(0, 3),
    "scalar": lambda: torch.tensor(3.0),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j, 3j]),
    "complex leaf": lambda: torch.tensor([1 + 2j, 3j]).requires_grad_(),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "from numpy": lambda: torch.from_numpy(np.arange(3.0)),
    "shared memory": lambda: torch.arange(3.0).share_memory_(),
    "parameter": lambda: torch.nn.Parameter(torch.arange(3.0)),
    "inference": lambda: inference(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def inference():
    """Return an inference tensor."""
    with torch.inference_mode():
        return torch.arange(3.0)


def write(x):
    """Change every element."""
    with torch.inference_mode() if x.is_inference() else torch.no_grad():
        x.copy_(torch.ones(x.shape, dtype=torch.float32).to(x.dtype)) if not x.is_quantized else (
            x.copy_(torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8))
        )


def values(x):
    """Return the values, independent of everything."""
    return x.detach().dequantize() if x.is_quantized else x.detach().clone()


@kinds
def test_equal_and_unnoticed(make):
    """Values, dtype and shape are the source's, and the source is untouched."""
    x = make()
    caller = Caller(x) if not x.is_quantized else None
    copy = snapshot(x)
    same(values(copy), values(x))
    assert copy.requires_grad == x.requires_grad
    if caller is not None:
        caller.check()


@kinds
def test_a_write_of_the_caller_does_not_reach_the_snapshot(make):
    """Which is what it is for."""
    x = make()
    copy, was = snapshot(x), values(x)
    if "expanded" in str(make.__code__.co_names) or x.stride() == (0, 1):
        x = x[0]
    write(x)
    same(values(copy), was)


@kinds
def test_a_write_of_the_snapshot_does_not_reach_the_caller(make):
    """Either."""
    x = make()
    copy, was = snapshot(x), values(x)
    write(copy)
    same(values(x), was)


def lazily(x):
    """Tell whether a snapshot of `x` shares its memory for now."""
    return torch._C._is_cow_tensor(snapshot(x))


@pytest.mark.parametrize(
    "make",
    [
        KINDS["plain"], KINDS["leaf"], KINDS["non-leaf"], KINDS["bool"], KINDS["complex"],
        KINDS["scalar"], KINDS["parameter"], KINDS["inference"],
        lambda: torch.arange(6.0).requires_grad_().detach().clone(),
        lambda: snapshot(torch.arange(6.0)),
    ],
)  # fmt: skip
def test_where_a_lazy_copy_is_safe(make):
    """Ordinary tensors that own all of their memory, alone."""
    x = make()
    assert may_share(x)
    assert lazily(x)


def alone(view):
    """Return a view that owns its memory alone: under inference mode it does not hold its base."""
    with torch.inference_mode():
        return view(torch.arange(6.0))


def exported(export):
    """Return a tensor whose memory something else holds too."""
    x = torch.arange(3.0)
    HELD.append(export(x))
    return x


HELD = []
# Each names the one thing that makes a lazy copy unsafe: apart from it, the tensor is an ordinary one.
HAZARDS = {
    "another device": lambda: torch.empty(3, device="meta"),
    "empty": KINDS["empty"],
    "sparse": lambda: torch.eye(2).to_sparse(),
    "mkldnn": lambda: torch.ones(2).to_mkldnn(),
    "quantized": KINDS["quantized"],
    "complex leaf": KINDS["complex leaf"],
    "complex with a gradient": lambda: torch.ones(2, dtype=torch.complex64, requires_grad=True) * 1,
    "conjugate": lambda: alone(lambda x: torch.complex(x, x).conj()),
    "negated": lambda: alone(torch._neg_view),
    "expanded": lambda: alone(lambda x: x[:1].clone().expand(3)),
    "expanded to its size": lambda: alone(lambda x: x.as_strided((2, 3), (0, 1))),
    "transposed": lambda: alone(lambda x: x.reshape(2, 3).t()),
    "channels_last": KINDS["channels_last"],
    "a part of its storage": lambda: alone(lambda x: x[:4]),
    "the end of its storage": lambda: alone(lambda x: x[4:]),
    "a view": lambda: torch.arange(6.0).view(2, 3),
    "an alias is alive": lambda: exported(lambda x: x.detach()),
    "saved by autograd": lambda: exported(lambda x: x * torch.ones(3, requires_grad=True)),
    "from numpy": lambda: torch.from_numpy(np.arange(3.0)),
    "from a buffer": lambda: torch.frombuffer(bytearray(12), dtype=torch.float32),
    "from a numpy array by DLPack": lambda: torch.from_dlpack(np.arange(3.0)),
    "exported to numpy": lambda: exported(lambda x: x.numpy()),
    "exported to numpy, which is gone": lambda: exported(lambda x: x.numpy().sum()),
    "exported by DLPack": lambda: exported(torch.from_dlpack),
    "exported to numpy by DLPack": lambda: exported(np.from_dlpack),
    "a DLPack capsule": lambda: exported(lambda x: x.__dlpack__()),
    "shared memory": KINDS["shared memory"],
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("hazard", HAZARDS)
def test_hazards_take_the_clone(hazard):
    """Where PyTorch's lazy copy crashes, raises, copies too much, or decouples somebody's memory."""
    x = HAZARDS[hazard]()
    assert not may_share(x)
    assert x.layout is not torch.strided or not lazily(x)
    HELD.clear()


@pytest.mark.parametrize("mmap", [False, True])
def test_loaded_tensors_take_the_clone(tmp_path, mmap):
    """A lazy copy of one crashes the process at the first write."""
    torch.save({"w": torch.arange(3.0)}, tmp_path / "w.pt")
    x = torch.load(tmp_path / "w.pt", mmap=mmap)["w"]
    assert not may_share(x)
    copy = snapshot(x)
    copy.add_(1)
    assert (x.tolist(), copy.tolist()) == ([0, 1, 2], [1, 2, 3])


@pytest.mark.parametrize("shared", [False, True])
def test_files_take_the_clone(tmp_path, shared):
    """Memory of a mapped file stays coupled to the file."""
    (tmp_path / "x").write_bytes(np.zeros(3, dtype=np.float32).tobytes())
    x = torch.from_file(str(tmp_path / "x"), shared=shared, size=3)
    assert not may_share(x)
    copy = snapshot(x)
    x.add_(1)
    assert (x.tolist(), copy.tolist()) == ([1, 1, 1], [0, 0, 0])


@pytest.mark.slow
def test_batches_of_loader_processes_take_the_clone():
    """They lie in shared memory, which reports itself resizable."""
    rows = torch.utils.data.TensorDataset(torch.arange(4.0))
    loader = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=1)
    assert [(may_share(x), lazily(x)) for (x,) in loader] == [(False, False)] * 2


@pytest.mark.cuda
def test_a_device_takes_the_clone():
    """There the lazy copy is made outside the current stream."""
    x = torch.ones(3, device="cuda")
    assert not may_share(x)
    assert not lazily(x)


def test_without_lazy_copies():
    """A torch that has none clones."""
    x = torch.ones(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_lazy_copy, "lazy_clone", None)
        assert not may_share(x)
        assert not lazily(x)
    assert lazily(x)


AFTERWARDS = {
    "numpy": lambda x: x.numpy().__iadd__(1),
    "dlpack": lambda x: torch.from_dlpack(x).add_(1),
    "numpy dlpack": lambda x: np.asarray(x).__iadd__(1),
    "storage": lambda x: x.untyped_storage().fill_(1),
    "data": lambda x: x.data.add_(1),
    "view": lambda x: x[:2].add_(1),
    "share_memory_": lambda x: x.share_memory_().add_(1),
    "a write, and resize_": lambda x: x.add_(1).resize_(5).fill_(1),
    "set_": lambda x: x.set_(torch.ones(3)),
    "swap": lambda x: torch.utils.swap_tensors(x, torch.ones(3)),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "out": lambda x: torch.ones(3, out=x),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).add_(1),
    "deepcopy": lambda x: copy.deepcopy(x).add_(1),
}


@pytest.mark.xfail(
    torch.__version__ >= "2.7",  # 2.6 can
    strict=True,
    raises=RuntimeError,
    reason="a fault of newer torch: see docs/limits.md",
)
def test_resizing_a_lazy_copy_is_a_limit():
    """PyTorch cannot write a storage again that was resized while it was shared."""
    x = torch.arange(3.0)
    kept = snapshot(x)
    x.resize_(5).fill_(1)
    assert kept.tolist() == [0, 1, 2]


def test_resizing_an_empty_input_is_right():
    """Which is what empty ones are for."""
    x = torch.empty(0)
    kept = freeze_inputs(snapshot=True)(lambda x: x * torch.ones(1, requires_grad=True))(x)
    torch.ones(3, out=x)
    assert (x.tolist(), kept.tolist()) == ([1, 1, 1], [])


@pytest.mark.parametrize("side", ["caller", "module"])
@pytest.mark.parametrize("way", AFTERWARDS)
def test_memory_handed_out_later_is_of_one_side(way, side):
    """Whatever one side does with its tensor afterwards, the other keeps its values."""
    x = torch.arange(3.0)
    other = snapshot(x)
    assert torch._C._is_cow_tensor(other)
    mine, theirs = (x, other) if side == "caller" else (other, x)
    AFTERWARDS[way](mine)
    assert theirs.tolist() == [0, 1, 2]
    mine.add_(5)
    assert theirs.tolist() == [0, 1, 2]
    theirs.add_(1)
    assert theirs.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "export",
    [lambda x: x.numpy(), torch.from_dlpack, np.from_dlpack, lambda x: x.__array__()],
    ids=["numpy", "torch dlpack", "numpy dlpack", "array"],
)
def test_arrays_that_the_caller_made_before_stay_coupled(export):
    """Later writes of the caller show in them, as without the library."""
    x = torch.zeros(3)
    alias = export(x)
    w = torch.ones(3, requires_grad=True)
    y = freeze_inputs(snapshot=True)(lambda x: x * w)(x)
    x.add_(1)
    assert alias.tolist() == [1, 1, 1]
    y.sum().backward()
    assert w.grad.tolist() == [0, 0, 0]


def test_a_snapshot_that_nobody_disturbs_costs_nothing():
    """It shares memory until either side writes."""
    x = torch.zeros(1 << 20)
    guarded = freeze_inputs(snapshot=True)(lambda x: x.shape)
    guarded(x)
    with torch.profiler.profile(profile_memory=True) as profile:
        guarded(x)
    allocated = [e.self_cpu_memory_usage for e in profile.events() if e.self_cpu_memory_usage > 0]
    assert sum(allocated) < 10_000


def test_saving_and_loading():
    """A snapshot, and its source, can be saved, loaded and written."""
    x = torch.arange(3.0)
    copy = snapshot(x)
    buffer = io.BytesIO()
    torch.save({"x": x, "copy": copy}, buffer)
    buffer.seek(0)
    back = torch.load(buffer)
    back["x"].add_(1)
    back["copy"].add_(2)
    assert (x.tolist(), copy.tolist()) == ([0, 1, 2], [0, 1, 2])
    assert (back["x"].tolist(), back["copy"].tolist()) == ([1, 2, 3], [2, 3, 4])


def test_gradients_flow_through_a_snapshot():
    """Under no_grad too: the snapshot is in the graph of its source."""
    w = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        copy = snapshot(w)
    (copy * 2).sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


def test_a_snapshot_call_is_independent_both_ways():
    """Writes inside and outside, with a saved value in between."""
    w = torch.ones(3, requires_grad=True)

    @freeze_inputs(snapshot=True)
    def forward(x, w):
        y = x * w
        x.add_(10)
        return y, x

    x = torch.zeros(3)
    y, z = forward(x, w)
    x.add_(100)
    assert (z.tolist(), x.tolist()) == ([10] * 3, [100] * 3)
    y.sum().backward()
    assert w.grad.tolist() == [0, 0, 0]
