"""The dispatch mode sees every write, and changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from safemodule import _explain_compat
from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of
from safemodule._explain_mode import WriteMode, _Plan, _plan, view_key
from safemodule._explain_notes import Notes


class Recorder(Notes):
    """Notes that keep every write."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def write(self, storage, op, code, offset, step, version, pin):
        """Keep it."""
        self.seen.append((storage, str(op), version, step))


@pytest.fixture
def notes():
    """Return the notes of a mode that is on."""
    notes = Recorder()
    with WriteMode(notes):
        yield notes


def versions(notes, tensor):
    """Return the versions noted for a tensor's storage."""
    return [v for s, _, v, _ in notes.seen if s == torch._C._storage_address(tensor)]


WRITES = {
    "method": lambda x: x.add_(1),
    "operator": lambda x: x.__iadd__(1),
    "item": lambda x: x.__setitem__(0, 1.0),
    "index": lambda x: x.__setitem__(torch.tensor([0]), 1.0),
    "view": lambda x: x[1:].t().mul_(2),
    "out": lambda x: torch.add(torch.ones(3, 3), 1, out=x),
    "function": lambda x: nn.functional.relu(x, inplace=True),
    "init": nn.init.ones_,
    "copy": lambda x: x.copy_(torch.ones(3, 3)),
    "list": lambda x: torch._foreach_mul_([x], 2.0),
    "random": lambda x: x.normal_(),
    "embedding": lambda x: nn.functional.embedding(torch.tensor([0]), x * 9, max_norm=0.1),
    "clip": lambda x: nn.utils.clip_grad_norm_([_with_grad(x)], 0.1),
}


def _with_grad(x):
    p = nn.Parameter(torch.ones(3, 3))
    p.grad = x
    return p


@pytest.mark.parametrize("write", [w for n, w in WRITES.items() if n != "embedding"])
def test_versions(notes, write):
    """Each write is noted with the version that it leaves."""
    x = torch.ones(3, 3)
    before = x._version
    write(x)
    seen = versions(notes, x)
    assert x._version > before
    assert seen == list(range(before + 1, x._version + 1))


def test_max_norm(notes):
    """An embedding with `max_norm` writes its weight."""
    weight = torch.ones(3, 3) * 9
    nn.functional.embedding(torch.tensor([0]), weight, max_norm=0.1)
    assert versions(notes, weight) == [weight._version]


def test_failed_write_is_not_noted(notes):
    """What raised has written nothing."""
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="size"):
        x.add_(torch.ones(4))
    assert notes.seen == []


def test_reads_are_not_noted(notes):
    """Nothing else is noted."""
    x = torch.ones(3, 3)
    (x @ x).softmax(-1).sum().item()
    x.clone().detach().view(9)[2:].tolist()
    assert notes.seen == []


def test_batch_norm(notes):
    """Statistics are written in training, and their writes are not counted."""
    norm = nn.BatchNorm1d(3).eval()
    x = torch.randn(2, 3)
    notes.seen.clear()
    before = norm.running_mean._version
    norm(x)
    assert notes.seen == []
    norm.train()(x)
    assert versions(notes, norm.running_mean) == [None]
    assert versions(notes, norm.running_var) == [None]
    assert norm.running_mean._version == before


def test_fused_optimizer(notes):
    """A fused optimiser writes, and does not count."""
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    before = p._version
    torch.optim.AdamW([p], fused=True).step()
    assert versions(notes, p) == [None]
    assert p._version == before
    assert {step for *_, step in notes.seen if step} == {"AdamW.step"}


def test_inference_tensor(notes):
    """An inference tensor has no version."""
    with torch.inference_mode():
        x = torch.ones(3)
        x.add_(1)
    assert versions(notes, x) == [None]


def test_sparse(notes):
    """A sparse tensor has no storage to note."""
    x = torch.eye(3).to_sparse()
    x.mul_(2)
    assert notes.seen == []
    assert x.to_dense()[0, 0] == 2
    with torch.no_grad():
        assert x.detach().is_sparse  # a view, and as little to note of it


def test_operation_without_a_schema():
    """Nothing is known of it, and nothing noted."""
    assert _plan(torch.ops.higher_order.cond) == _Plan()


def test_operation_that_cannot_be_read():
    """Whatever arrives, an error of ours is none of the program's."""

    class Odd:
        @property
        def _schema(self):
            raise RuntimeError("symbolic")

        def __call__(self, x):
            return x + 1

    odd = Odd()
    for _ in range(2):
        assert WriteMode(Recorder()).__torch_dispatch__(odd, (), (1,)) == 2


def test_view_made_in_a_nested_block():
    """The outer block notes it."""
    p = torch.zeros(1, requires_grad=True)
    with pytest.raises(InplaceError) as info, explain(), explain(check_values=True):
        with torch.no_grad():
            view = torch.ones(2)[:1]  # the view
        view.mul_(p)
    made = explanation_of(info.value).events[0]
    assert made.text.endswith("by slice")
    assert made.where.line.endswith("# the view")


@pytest.fixture(scope="module")
def library():
    """Define operations of our own: one that says what it writes, one that does not."""

    def says(x):
        x.add_(1)

    def views(x):
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return torch.ops.explain_tests.views(x)

    fragment = torch.library.Library("explain_tests", "DEF")
    fragment.define("says(Tensor(a!) x) -> ()")
    fragment.define("hides(Tensor x) -> Tensor")
    fragment.define("reads(Tensor x) -> Tensor")
    fragment.define("views(Tensor(a) x) -> Tensor(a)")
    fragment.impl("says", says, "CompositeExplicitAutograd")
    fragment.impl("hides", lambda x: x.add_(1) + 1, "CompositeExplicitAutograd")
    fragment.impl("reads", lambda x: x + 1, "CompositeExplicitAutograd")
    fragment.impl("views", lambda x: x[:1], "CompositeExplicitAutograd")
    fragment.impl("views", views, "ADInplaceOrView")
    yield torch.ops.explain_tests
    fragment._destroy()


def test_operations_of_an_extension(notes, library):
    """They count as they do without a mode, and what they hide is seen by its version."""
    assert _plan(library.views.default) == _Plan(view=True)
    x = torch.ones(3, 3)
    library.says(x[:1])
    assert versions(notes, x) == [x._version] == [1]
    library.hides(x)
    assert versions(notes, x) == [1, 2]
    library.reads(x)
    assert versions(notes, x) == [1, 2]
    assert x._version == 2


def test_operation_that_hides_its_write_is_named(library):
    """The explanation names it."""
    with pytest.raises(InplaceError, match="written by hides"), explain():
        w = torch.ones(3, requires_grad=True)
        x = torch.ones(3)
        y = x * w
        library.hides(x)
        y.sum().backward()


def test_custom_op_written_with_the_decorator():
    """`torch.library.custom_op` counts its own writes."""

    @torch.library.custom_op("explain_tests_py::shift", mutates_args=("x",))
    def shift(x: torch.Tensor) -> None:
        x += 1

    with pytest.raises(InplaceError) as info, explain():
        w = torch.ones(3, requires_grad=True)
        x = torch.ones(3)
        y = x * w
        shift(x)
        y.sum().backward()
    assert explanation_of(info.value).events[-1].where.line == "shift(x)"


@pytest.mark.skipif(
    not hasattr(_explain_compat.DispatchMode, "supports_higher_order_operators"),
    reason="this torch lets no mode see higher-order operators",
)
def test_higher_order_operators():
    """`torch.cond` and its kin run under the mode."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with explain():
            x = torch.ones(3)
            found = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
    assert torch.equal(found, x.sin())


def test_views(notes):
    """Views that nobody may write are noted: several at once, and those without gradients."""
    x = torch.ones(4, 2)
    x.chunk(2)
    assert notes.view_site(view_key(x[2:], many=True))[1] is test_views.__code__
    x = torch.ones(4, 2)
    view = x[1:]
    assert notes.view_site(view_key(view, many=False)) is None
    with torch.no_grad():
        view = x[1:]
    assert notes.view_site(view_key(view, many=False))[1] is test_views.__code__
    assert notes.view_site(view_key(x[2:], many=False)) is None


def test_notes_hold_no_memory():
    """What was written can be freed, and its address is not mistaken for another's."""
    from torch.multiprocessing.reductions import StorageWeakRef

    notes = Notes()
    addresses = set()
    with WriteMode(notes):
        for _ in range(50):
            x = torch.zeros(1000)
            x.add_(1)
            with torch.no_grad():
                x[1:]
            gone = StorageWeakRef(x.untyped_storage())
            addresses.add(torch._C._storage_address(x))
            del x
            assert gone.expired()
    assert len(addresses) == 50


def test_names_of_optimizers():
    """The optimiser that steps is named, whatever calls it."""
    net = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(3, 2).requires_grad_()
    for scheduled in (False, True):
        if scheduled:  # it wraps `step` once more
            torch.optim.lr_scheduler.ConstantLR(optimizer)
        with pytest.raises(InplaceError, match=r"in AdamW\.step"), explain():
            loss = net(x).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            loss.backward()
