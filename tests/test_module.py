"""`SafeModule`: class keywords, mixins, inherited and redefined forwards."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import Tensor, nn

from safemodule import InputMutationError, SafeModule, mode, record
from tests.helpers import Caller


def outcome(net, *extra):
    """Say what a call does: 'copied', 'refused' or 'off'."""
    x = torch.zeros(1)
    try:
        net(x, *extra)
    except InputMutationError:
        return "refused"
    return "copied" if x.tolist() == [0] else "off"


class Plain(nn.Module):
    """Writes its input."""

    def forward(self, x):
        return x.add_(1)


class Safe(SafeModule):
    """The same, guarded."""

    def forward(self, x):
        return x.add_(1)


# -- class keywords --------------------------------------------------------------------------------


def test_keywords():
    """`mode`, `mutable`, `snapshot`."""

    class Strict(SafeModule, mode="strict"):
        def forward(self, x):
            return x.add_(1)

    class Cached(SafeModule, mutable=("cache",), mode="strict"):
        def forward(self, x, cache):
            return cache.add_(1)

    assert outcome(Strict()) == "refused"
    cache = torch.zeros(1)
    assert Cached()(torch.zeros(1), cache) is cache
    assert cache.tolist() == [1]


def test_snapshot_keyword():
    """Later writes of the caller do not reach what forward saved."""

    class Square(SafeModule, snapshot=True):
        def forward(self, x):
            return x * x

    w = torch.ones(2, requires_grad=True)
    x = w * 1
    y = Square()(x)
    x.zero_()
    y.sum().backward()
    assert w.grad.tolist() == [2, 2]


def test_snapshot_unwritten_input_is_the_same_object():
    """Also with a snapshot."""

    class Same(SafeModule, snapshot=True):
        def forward(self, x, batch):
            return x, batch["x"]

    x, batch = torch.zeros(1), {"x": torch.zeros(1)}
    out = Same()(x, batch)
    assert out[0] is x
    assert out[1] is batch["x"]


def test_unknown_keyword_is_refused_by_name():
    """At class creation."""
    with pytest.raises(TypeError, match=r"class .*Net: unknown keyword 'mod'; .*'mode'") as caught:

        class Net(SafeModule, mod="strict"):
            pass

    assert "'mutable'" in str(caught.value)
    assert "'snapshot'" in str(caught.value)


def test_bad_values_are_refused():
    """At class creation."""
    with pytest.raises(ValueError, match="'copy', 'warn', 'strict', 'off'"):

        class A(SafeModule, mode="strickt"):
            pass

    with pytest.raises(TypeError, match=r'mutable=\("cache",\)'):

        class B(SafeModule, mutable="cache"):
            pass


def test_mutable_name_that_is_no_parameter():
    """At class creation, with the list of parameters."""
    with pytest.raises(ValueError, match="'cach' is no parameter") as caught:

        class Net(SafeModule, mutable=("cach",)):
            def forward(self, x, cache):
                pass

    assert "x, cache" in str(caught.value)


def test_mutable_name_on_an_inherited_forward():
    """Checked against the forward that the class has, wherever it comes from."""

    class Base(nn.Module):
        def forward(self, x, cache):
            return cache.add_(1)

    class Net(SafeModule, Base, mutable=("cache",)):
        pass

    cache = torch.zeros(1)
    Net()(torch.zeros(1), cache)
    assert cache.tolist() == [1]
    with pytest.raises(ValueError, match="'kache' is no parameter"):

        class Bad(SafeModule, Base, mutable=("kache",)):
            pass


def test_inherited_mutable_names_that_a_new_forward_lacks():
    """A subclass with other parameters is none of the base's business."""

    class Base(SafeModule, mutable=("cache", "state")):
        def forward(self, x, cache, state):
            cache.add_(1)

    class Other(Base):
        def forward(self, x, state):
            x.add_(1)
            state.add_(1)

    x, state = torch.zeros(1), torch.zeros(1)
    Other()(x, state)
    assert (x.tolist(), state.tolist()) == ([0], [1])

    class Later(Base):
        pass

    Later.forward = lambda self, x: x.add_(1)
    assert outcome(Later()) == "copied"


def test_own_mutable_names_are_checked_in_subclasses():
    """What a subclass declares itself must be a parameter of its own forward."""

    class Base(SafeModule):
        def forward(self, x, cache):
            cache.add_(1)

    with pytest.raises(ValueError, match="'cache' is no parameter"):

        class Other(Base, mutable=("cache",)):
            def forward(self, x):
                pass


def test_keywords_are_inherited_and_overridden():
    """The nearest class that says something wins; keywords add up."""

    class Strict(SafeModule, mode="strict", mutable=("cache",)):
        def forward(self, x, cache=None):
            if cache is not None:
                cache.add_(1)
            return x.add_(1)

    class Same(Strict):
        pass

    class Redefined(Strict):
        def forward(self, x, cache=None):
            return x.add_(1)

    class Lenient(Strict, mode="copy"):
        pass

    class Below(Lenient):
        pass

    assert [outcome(cls()) for cls in (Strict, Same, Redefined, Lenient, Below)] == [
        "refused", "refused", "refused", "copied", "copied",
    ]  # fmt: skip
    cache = torch.zeros(1)
    with mode("copy"):
        for cls in (Strict, Lenient):
            cls()(torch.zeros(1), cache)
    assert cache.tolist() == [2]


def test_keywords_of_two_bases():
    """In the order of the MRO, the nearest first."""

    class A(SafeModule, mode="strict"):
        pass

    class B(SafeModule, mode="off"):
        def forward(self, x):
            return x.add_(1)

    class AB(A, B):
        pass

    class BA(B, A):
        pass

    assert outcome(AB()) == "refused"
    assert outcome(BA()) == "off"


def test_keywords_of_other_bases_pass_through():
    """A base with keywords of its own gets them."""
    seen = {}

    class Registered(nn.Module):
        def __init_subclass__(cls, name="", **keywords):
            super().__init_subclass__(**keywords)
            seen[cls.__name__] = name

    class Net(SafeModule, Registered, name="net", mode="strict"):
        def forward(self, x):
            return x.add_(1)

    assert seen == {"Net": "net"}
    assert outcome(Net()) == "refused"


# -- mixin and inheritance -------------------------------------------------------------------------


def test_mixin_over_an_existing_class():
    """An inherited forward is covered; the base stays as it was."""

    class Mixed(SafeModule, Plain):
        pass

    assert outcome(Mixed()) == "copied"
    assert outcome(Plain()) == "off"
    assert "__safemodule_plan__" not in vars(Plain.forward)


@pytest.mark.parametrize("cls", [nn.ReLU, nn.Hardswish, nn.SiLU, nn.Dropout])
def test_mixin_over_stock_modules(cls):
    """Stock modules with `inplace=True`."""
    Mixed = type("Mixed", (SafeModule, cls), {})
    net = Mixed(inplace=True)
    x = torch.tensor([-1.0, 2.0])
    caller = Caller(x)
    with record() as log:
        net(x)
    caller.check()
    assert len(log) == 1
    assert isinstance(net, cls)


def test_mixin_behind_the_class():
    """`class Net(Plain, SafeModule)` covers the forward of the class in front as well."""

    class Net(Plain, SafeModule):
        pass

    assert outcome(Net()) == "copied"


def test_subclass_of_a_safe_module():
    """Redefined, inherited, and two levels down."""

    class Redefined(Safe):
        def forward(self, x):
            return x.mul_(2)

    class Inherited(Safe):
        pass

    class Below(Redefined):
        pass

    assert [outcome(cls()) for cls in (Redefined, Inherited, Below)] == ["copied"] * 3


def test_super_forward_chains_are_guarded_once():
    """`super().forward(x)` works on the same handle: what it writes, the caller below sees."""

    class Middle(Safe):
        def forward(self, x):
            y = super().forward(x)
            assert y is x
            x.mul_(10)
            return x

    class Top(Middle):
        def forward(self, x):
            y = super().forward(x)
            assert y is x
            return x + 0

    with record() as log:
        assert Top()(torch.zeros(1)).tolist() == [10]
    assert sum(m.bytes_copied for m in log) == 4
    assert {m.module.rsplit(".", 1)[-1] for m in log} == {"Top"}


def test_super_forward_with_another_tensor():
    """Within the chain a local tensor is the module's own."""

    class Top(Safe):
        def forward(self, x):
            local = x * 1
            super().forward(local)
            return local

    assert Top()(torch.zeros(1)).tolist() == [1]


def test_super_forward_of_a_mixin():
    """A guarded forward that calls an unguarded parent's."""

    class Net(SafeModule, Plain):
        def forward(self, x):
            super().forward(x)
            return x + 0

    x = torch.zeros(1)
    assert Net()(x).tolist() == [1]
    assert x.tolist() == [0]


def test_a_parents_forward_of_another_module_is_guarded():
    """Only the module's own chain is one call; another module of a parent class is guarded."""

    class Outer(Safe):
        def __init__(self):
            super().__init__()
            self.inner = Safe()

        def forward(self, x):
            y = self.inner(x)
            return x * 10 + y

    assert Outer()(torch.zeros(1)).tolist() == [1]


def test_a_module_that_calls_itself():
    """`self(x)` inside forward is a guarded call of its own."""

    class Recursive(SafeModule):
        def forward(self, x, depth=2):
            x.add_(1)
            if depth:
                self(x, depth - 1)
            return x

    assert Recursive()(torch.zeros(1)).tolist() == [1]


def test_forward_called_directly():
    """`net.forward(x)` is guarded as `net(x)` is."""
    x = torch.zeros(1)
    assert Safe().forward(x).tolist() == [1]
    assert x.tolist() == [0]


# -- forward redefined later -----------------------------------------------------------------------


def test_forward_redefined_on_the_class():
    """Any number of times, on the class itself or on a base, before an instance is made."""

    class Net(SafeModule):
        def forward(self, x):
            return x.add_(1)

    class Child(Net):
        pass

    assert outcome(Child()) == "copied"

    def doubles(self, x):
        return x.mul_(2).add_(1)

    Net.forward = doubles
    assert outcome(Net()) == "copied"
    assert outcome(Child()) == "copied"
    Child.forward = doubles
    x = torch.ones(1)
    assert Child()(x).tolist() == [3]
    assert x.tolist() == [1]


def test_forward_redefined_on_the_class_of_an_instance():
    """It is guarded from the next instance on: the documented limit of not looking in each call."""

    class Net(SafeModule):
        def forward(self, x):
            return x.add_(1)

    net = Net()
    Net.forward = lambda self, x: x.add_(5)
    x = torch.zeros(1)
    assert net(x).tolist() == [5]
    assert x.tolist() == [5]
    Net()
    y = torch.zeros(1)
    assert net(y).tolist() == [5]
    assert y.tolist() == [0]


def test_forward_set_on_the_instance():
    """Functions, bound methods and lambdas."""
    net = Safe()
    net.forward = lambda x: x.mul_(0).add_(7)
    x = torch.ones(1)
    with record() as log:
        assert net(x).tolist() == [7]
    assert x.tolist() == [1]
    assert [m.argument for m in log] == ["x", "x"]
    del net.forward
    assert net(x).tolist() == [2]


def test_forward_of_another_object_on_the_instance():
    """A bound method of something else."""
    net, other = Safe(), Plain()
    net.forward = other.forward
    assert outcome(net) == "copied"


def test_method_set_as_forward():
    """One of the module's own: its `forward` again, or another method."""

    class Net(Safe):
        def encode(self, x):
            return x.add_(2)

    net = Net()
    net.forward = net.forward
    assert outcome(net) == "copied"
    with record() as log:
        net(torch.zeros(1))
    assert sum(m.count for m in log) == 1  # guarded once
    net.forward = net.encode
    x = torch.zeros(1)
    assert (net(x).tolist(), x.tolist()) == ([2], [0])


def test_forward_that_cannot_be_called():
    """Raises when it is called, as in a plain module."""
    errors = []
    for net in (Safe(), Plain()):
        net.forward = 3
        with pytest.raises(TypeError) as caught:
            net(torch.zeros(1))
        errors.append(str(caught.value))
    assert errors == ["'int' object is not callable"] * 2


def test_base_that_refuses_to_be_subclassed():
    """Its error is its own."""

    class Final:
        def __init_subclass__(cls):
            raise TypeError("Final is final")

    with pytest.raises(TypeError, match="Final is final"):

        class Net(SafeModule, Final):
            pass


def test_forward_wrapped_on_the_instance():
    """`net.forward = wrapper(net.forward)`, as profilers do, is guarded once."""
    net = Safe()
    inner = net.forward
    calls = []

    def wrapper(*args, **kwargs):
        calls.append(1)
        return inner(*args, **kwargs)

    net.forward = wrapper
    x = torch.zeros(1)
    with record() as log:
        assert net(x).tolist() == [1]
    assert (x.tolist(), calls) == ([0], [1])
    assert sum(m.count for m in log) == 1


def test_module_without_forward():
    """Raises as a plain module does."""

    class Net(SafeModule):
        pass

    with pytest.raises(NotImplementedError, match="forward"):
        Net()(torch.zeros(1))


def test_static_forward_is_refused():
    """It would have no module to name."""
    with pytest.raises(TypeError, match="forward must be a method"):

        class Net(SafeModule):
            @staticmethod
            def forward(x):
                return x


# -- as any nn.Module ------------------------------------------------------------------------------


class WithState(SafeModule, mutable=("cache",)):
    """A module with parameters, buffers and submodules."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros(()))
        self.inner = Safe()

    def forward(self, x, cache=None):
        self.steps += 1
        return self.inner(self.linear(x))


def test_deepcopy_pickle_and_state_dict():
    """A copy is guarded as the original is."""
    net = WithState()
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    third = WithState()
    third.load_state_dict(torch.load(buffer))
    x = torch.randn(3, 2)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), third):
        assert type(other) is WithState
        assert torch.equal(other(x), net(x))
        assert other.steps == 1
        net.steps.zero_()
    assert outcome(copy.deepcopy(Safe())) == "copied"


def test_to_train_apply_and_compile_flags():
    """Conversion and mode methods."""
    net = WithState().to(torch.float64).eval()
    assert not net.inner.training
    assert net(torch.zeros(1, 2, dtype=torch.float64)).dtype is torch.float64
    assert [name for name, _ in net.named_modules()] == ["", "linear", "inner"]
    assert net.half().linear.weight.dtype is torch.float16


def test_buffers_written_inside_are_the_modules_own():
    """The module's state is not an argument."""
    net = WithState()
    with record() as log:
        net(torch.zeros(1, 2))
        net(torch.zeros(1, 2))
    assert net.steps == 2
    assert {m.argument for m in log} == {"x"}
    assert all(m.module.endswith(".Safe") for m in log)


def test_hooks_and_extra_repr():
    """`repr` and the class name are those of the class."""

    class Net(SafeModule, nn.Linear):
        pass

    assert repr(Net(2, 3)) == "Net(in_features=2, out_features=3, bias=True)"


def test_inside_containers_of_torch():
    """Sequential, ModuleList, DataParallel-like replication by copy."""
    net = nn.Sequential(Safe(), nn.Identity(), Safe())
    x = torch.zeros(1)
    assert net(x).tolist() == [2]
    assert x.tolist() == [0]


def test_functional_call():
    """`torch.func.functional_call` with other parameters."""
    net = WithState()
    state = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    out = torch.func.functional_call(net, state, (torch.ones(1, 2),))
    assert out.tolist() == [[1, 1]]


def test_generic_and_abstract_classes():
    """Other metaclasses and bases."""
    import abc
    from typing import Generic, TypeVar

    T = TypeVar("T")

    class Abstract(SafeModule, abc.ABC):
        @abc.abstractmethod
        def forward(self, x): ...

    class Concrete(Abstract):
        def forward(self, x):
            return x.add_(1)

    class Parametric(SafeModule, Generic[T]):
        def forward(self, x):
            return x.add_(1)

    with pytest.raises(TypeError, match="abstract"):
        Abstract()
    assert outcome(Concrete()) == "copied"
    assert outcome(Parametric[int]()) == "copied"


def test_parametrization():
    """`register_parametrization` gives the instance a class of its own, which is guarded too."""
    from torch.nn.utils import parametrize

    class Net(SafeModule, nn.Linear, mode="strict"):
        def forward(self, x):
            x.add_(1)
            return super().forward(x)

    class Upper(nn.Module):
        def forward(self, weight):
            return weight.triu()

    net = Net(1, 1)
    parametrize.register_parametrization(net, "weight", Upper())
    assert type(net) is not Net
    assert outcome(net) == "refused"


def test_class_and_module_die():
    """A class made in a function is garbage like any other."""

    def make():
        class Net(SafeModule):
            def forward(self, x):
                return x.add_(1)

        Net()(torch.zeros(1))
        return weakref.ref(Net)

    ref = make()
    gc.collect()
    assert ref() is None


def test_annotations_of_forward_survive():
    """Tools that read the signature of forward see the original."""
    import inspect

    class Net(SafeModule):
        def forward(self, x: Tensor, *, k: int = 0) -> Tensor:
            """Say what it does."""
            return x

    assert str(inspect.signature(Net().forward)) == "(x: 'Tensor', *, k: 'int' = 0) -> 'Tensor'"
    assert Net.forward.__doc__ == "Say what it does."
    assert Net.forward.__qualname__.endswith("Net.forward")


def test_record_names_the_class_of_the_instance():
    """Not the class that defines forward."""

    class Child(Safe):
        pass

    with record() as log:
        Child()(torch.zeros(1))
    assert log[0].module.endswith("test_record_names_the_class_of_the_instance.<locals>.Child")


def test_a_lazy_module_stays_guarded():
    """`nn.LazyLinear` changes its class at the first call; the guard is there in the second."""

    class Net(SafeModule, torch.nn.LazyLinear):
        def forward(self, x):
            x.add_(1)
            return super().forward(x)

    net, x = Net(2), torch.zeros(1, 3)
    for _ in range(2):
        assert net(x).shape == (1, 2)
        assert x.sum() == 0
    assert isinstance(net, SafeModule)
    assert net.in_features == 3
    again = Net(2)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x), net(x))
