"""Code that looks at tensors rather than computing with them: it sees what it sees of plain ones."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch

from safemodule import freeze_inputs, record
from safemodule._compat import COUNTS_TELL
from tests.helpers import Caller, compare_with_clones, same


def x23(*, grad=False):
    """Return values."""
    return torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(grad)


LOOKS = {
    "isinstance": lambda x: (isinstance(x, torch.Tensor), isinstance(x, torch.FloatTensor)),
    "is_tensor": torch.is_tensor,
    "repr": repr,
    "str": lambda x: str(x),
    "f-string": lambda x: f"{x} {x.sum():.3f} {x[0, 0]:>8.2f}",
    "format": lambda x: f"{x.max():.1e}|{x.numel():d}",
    "percent": lambda x: "%s %.2f" % (x, x.min()),  # noqa: UP031 -- users write it
    "shape": lambda x: (x.shape, x.size(), x.size(-1), x.dim(), x.ndim, x.numel(), x.nelement()),
    "shape unpacked": lambda x: _unpack(x),
    "shape arithmetic": lambda x: x.new_zeros(x.shape[0] * x.shape[1] // 2, x.size(1)).shape,
    "type": lambda x: (x.type(), x.dtype, x.device, x.layout, x.is_floating_point()),
    "flags": lambda x: (x.is_contiguous(), x.is_complex(), x.is_cuda, x.is_sparse, x.is_nested),
    "strides": lambda x: (x.stride(), x.storage_offset(), x.element_size(), x.nbytes, x.itemsize),
    "device": lambda x: (x.device == torch.device("cpu"), x.device.type == "cpu", x.get_device()),
    "dtype": lambda x: (x.dtype == torch.float32, x.dtype is torch.float32, torch.finfo(x.dtype)),
    "len": len,
    "iteration": lambda x: [row.tolist() for row in x],
    "unpacking": lambda x: _rows(x),
    "enumerate and zip": lambda x: [(i, a.tolist(), b.item()) for i, (a, b) in enumerate(zip(x, x[:, 0], strict=True))],
    "contains": lambda x: (1.0 in x, 7.0 in x),
    "reversed": lambda x: [row.tolist() for row in reversed(x)],
    "tolist": lambda x: x.tolist(),
    "item": lambda x: (x.sum().item(), float(x[0, 0]), int(x[1, 2]), bool(x[0, 0])),
    "index": lambda x: [10, 20, 30][x.argmax(1)[0]],
    "bool": lambda x: "yes" if x.any() else "no",
    "numpy": lambda x: x.numpy().tolist(),
    "asarray": lambda x: (np.asarray(x).tolist(), np.array(x).shape, np.sum(x.numpy()).item()),
    "numpy functions": lambda x: np.mean(x.numpy(), axis=0).tolist(),
    "torch.as_tensor": lambda x: torch.as_tensor(x).tolist(),
    "torch.tensor of items": lambda x: torch.tensor([x.min(), x.max()]).tolist(),
    "hash and identity": lambda x: (hash(x) == hash(x), {x: 1}[x]),
    "equal": lambda x: (torch.equal(x, x.clone()), torch.allclose(x, x + 0), bool((x == x).all())),
    "is_leaf": lambda x: (x.is_leaf, x.requires_grad, x.grad_fn is None, x.grad is None),
    "dir": lambda x: "_safemodule" in dir(x),
    "vars": lambda x: vars(x),
    "hasattr": lambda x: (hasattr(x, "shape"), hasattr(x, "nothing"), hasattr(x, "__array__")),
    "class name": lambda x: _match(x),
    "match": lambda x: _match_shape(x),
    "complex": lambda x: (torch.is_complex(x), torch.is_floating_point(x), torch.is_nonzero(x.max())),
    "broadcast shapes": lambda x: torch.broadcast_shapes(x.shape, (1, 3)),
    "result_type": lambda x: torch.result_type(x, 1.5),
    "promote": lambda x: torch.can_cast(x.dtype, torch.float64),
    "truth of comparisons": lambda x: [bool(v > 0) for v in x.flatten()],
    "sorted": lambda x: [v.item() for v in sorted(x.flatten())],
    "max and min of python": lambda x: (max(x.flatten()).item(), min(x.flatten()).item(), sum(x.flatten()).item()),
    "math": lambda x: __import__("math").sqrt(x[1, 2]),
    "printoptions": lambda x: _with_options(x),
    "storage size": lambda x: x.untyped_storage().nbytes(),
    "version": lambda x: x._version,
    "typename": torch.typename,
    "json": lambda x: __import__("json").dumps(x.tolist()),
}  # fmt: skip


def _unpack(x):
    rows, columns = x.shape
    first, *rest = x.shape
    return rows, columns, first, rest


def _rows(x):
    first, second = x
    (a, b, _), *_ = x
    return first.tolist(), second.tolist(), a.item(), b.item()


def _match(x):
    match x:
        case torch.Tensor():
            return "tensor"
    return "other"


def _match_shape(x):
    match x.shape:
        case (rows, 3):
            return rows
    match x:
        case torch.Tensor(dtype=torch.float32, ndim=2):
            return "float matrix"
    return None


def _with_options(x):
    torch.set_printoptions(precision=2, sci_mode=False)
    try:
        return repr(x)
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", LOOKS)
def test_looking_at_an_input(name, grad):
    """The same answer as from the plain tensor, and the caller's stays what it was.

    With a gradient, what cannot be asked of the plain tensor cannot be asked of the handle.
    """
    look = LOOKS[name]

    def answer(function, x):
        try:
            return function(x)
        except Exception as error:
            return type(error), str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, of both alike
        x = x23(grad=grad)
        caller = Caller(x)
        mine = answer(freeze_inputs(look), x)
        caller.check()
        assert mine == answer(look, x23(grad=grad))


@pytest.mark.parametrize("name", ["repr", "tolist", "item", "numpy", "f-string", "iteration"])
def test_looking_at_a_written_input(name):
    """After a write the answers are those of the written values."""

    def forward(x):
        x.mul_(2)
        x[0, 0] = 5
        return LOOKS[name](x)

    x = x23()
    caller = Caller(x)
    assert freeze_inputs(forward)(x) == forward(x23())
    caller.check()


def test_reading_copies_nothing():
    """Looking copies nothing, but for what hands out the memory itself."""
    exports = {"numpy", "asarray", "numpy functions", "storage size"}
    for name, look in LOOKS.items():
        with record() as log, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            freeze_inputs(look)(x23())
        assert not log, name
        assert bool(log.copies) == (name in exports), name


counts_tell = pytest.mark.skipif(
    not COUNTS_TELL,
    reason="this torch does not tell whether autograd saved a value: a write after a read copies",
)


@counts_tell
def test_numpy_arrays_share_the_private_copy():
    """An array made of a handle shows the module's writes, and its writes stay inside."""

    def forward(x):
        array = x.numpy()
        x.add_(1)
        array[0, 0] = 7.0
        return x * 2

    compare_with_clones(freeze_inputs(forward), forward, lambda: (x23(),), backward=False)


@counts_tell
def test_data_ptr_caching():
    """A cache keyed by address: a handle has one address while nothing is saved."""

    def forward(x):
        first = x.data_ptr()
        x.add_(1)
        x.mul_(2)
        return first == x.data_ptr(), x

    same_address, out = freeze_inputs(forward)(x23())
    assert same_address
    same(out, (x23() + 1) * 2)


def test_copies_of_a_handle():
    """`copy.copy`, `deepcopy`, pickling and saving give ordinary tensors."""

    def forward(x):
        x.tag = "mine"
        shallow, deep = copy.copy(x), copy.deepcopy(x)
        pickled = pickle.loads(pickle.dumps(x))
        buffer = io.BytesIO()
        torch.save(x, buffer)
        buffer.seek(0)
        saved = torch.load(buffer, weights_only=True)
        x.add_(1)
        return shallow, deep, pickled, saved, [type(t) for t in (deep, pickled, saved)]

    x = x23()
    caller = Caller(x)
    shallow, *others, kinds = freeze_inputs(forward)(x)
    assert kinds == [torch.Tensor] * 3
    for other in others:
        same(other, x)
    # A shallow copy shares memory, with the module's own copy too.
    assert type(shallow) is torch.Tensor
    caller.check()


def test_tensors_as_dictionary_keys_and_in_weak_references():
    """Identity and weak references hold through a write."""
    import weakref

    from torch.utils.weak import WeakTensorKeyDictionary

    def forward(x):
        table, weak, ref = {x: "strong"}, WeakTensorKeyDictionary(), weakref.ref(x)
        weak[x] = "weak"
        x.add_(1)
        return table[x], weak[x], ref() is x

    assert freeze_inputs(forward)(x23()) == ("strong", "weak", True)


def test_writes_by_looking():
    """Idioms that write while they look: `x[mask] = ...` after `.any()`, `+=` on an element."""

    def forward(x):
        if (x < 0).any():
            x[x < 0] = 0.0
        x[0, 0] += 1
        for row in x:
            row -= row.mean()
        for i in range(len(x)):
            x[i] /= i + 1
        first, _ = x
        first.clamp_(max=0.1)
        return x

    compare_with_clones(freeze_inputs(forward), forward, lambda: (x23(),), backward=False)


# -- libraries that look ---------------------------------------------------------------------------


def test_einops():
    """`rearrange`, `reduce`, `repeat` and `einsum` of einops, with a write to a rearranged view."""
    einops = pytest.importorskip("einops", reason="einops is not installed")

    def forward(x):
        turned = einops.rearrange(x, "a b -> b a")
        y = einops.reduce(x, "a b -> a", "sum") + einops.repeat(x[:, 0], "a -> a").sum()
        z = einops.einsum(x, x, "a b, c b -> a c")
        turned[0] = 1.0
        return y, z, x * 1

    def reference(x):
        ones = torch.cat([torch.ones_like(x[:, :1]), x[:, 1:]], 1)
        return x.sum(1) + x[:, 0].sum(), x @ x.t(), ones

    compare_with_clones(
        freeze_inputs(forward), reference, lambda: (x23(grad=True),), strides=False, exact=False
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jaxtyping_and_beartype():
    """Annotated shapes, checked at run time, over and under the guard."""
    jaxtyping = pytest.importorskip("jaxtyping", reason="jaxtyping is not installed")
    beartype = pytest.importorskip("beartype", reason="beartype is not installed")

    def forward(x):
        x.mul_(2)
        return x.t()

    forward.__annotations__ = {
        "x": jaxtyping.Float[torch.Tensor, "a b"],
        "return": jaxtyping.Float[torch.Tensor, "b a"],
    }
    checked = jaxtyping.jaxtyped(typechecker=beartype.beartype)(forward)
    compare_with_clones(freeze_inputs(checked), forward, lambda: (x23(grad=True),), strides=False)
    outer = jaxtyping.jaxtyped(typechecker=beartype.beartype)(freeze_inputs(forward))
    compare_with_clones(outer, forward, lambda: (x23(grad=True),), strides=False)
    with pytest.raises(jaxtyping.TypeCheckError):
        outer(torch.ones(3))


def test_torch_testing_on_handles():
    """`torch.testing.assert_close` inside forward."""

    @freeze_inputs
    def forward(x):
        torch.testing.assert_close(x, x.clone())
        x.add_(1)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(x, x - 1)
        return x

    x = x23()
    caller = Caller(x)
    forward(x)
    caller.check()


def test_functional_everything():
    """Most of `torch.nn.functional` on a handle that is written afterwards."""
    functional = torch.nn.functional
    names = (
        "relu relu6 elu selu celu leaky_relu gelu silu mish softplus softsign tanhshrink hardswish "
        "hardsigmoid hardtanh logsigmoid sigmoid tanh normalize threshold rrelu"
    ).split()
    arguments = {"threshold": (0.1, 0.0)}

    def apply(x):
        outs = []
        for name in names:
            function = getattr(functional, name, None) or getattr(torch, name)
            outs.append(function(x, *arguments.get(name, ())))
        outs.append(functional.softmax(x, -1))
        outs.append(functional.layer_norm(x, (3,)))
        outs.append(functional.pad(x, (1, 1)))
        outs.append(functional.mse_loss(x, x * 2))
        outs.append(functional.cross_entropy(x, torch.tensor([0, 1])))
        outs.append(functional.interpolate(x[None], scale_factor=2.0))
        outs.append(functional.conv1d(x[None], torch.ones(1, 2, 2)))
        return sum(out.sum() for out in outs)

    def forward(x):
        y = apply(x)
        x.mul_(2)
        return y + apply(x)

    compare_with_clones(
        freeze_inputs(forward),
        lambda x: apply(x) + apply(x * 2),
        lambda: (x23(grad=True),),
        exact=False,
    )
