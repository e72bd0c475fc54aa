"""Forward hooks of a SafeModule: part of its call, so what they write of the inputs is a copy."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

from safemodule import InputMutationError, Mutable, SafeModule, mode, record
from safemodule._hooks import Hook


class Plus(SafeModule):
    """Reads."""

    def forward(self, x, k=None):
        """Return a new tensor."""
        return x + 1 if k is None else x + k


class Same(SafeModule):
    """Returns its input."""

    def forward(self, x):
        """Return the input."""
        return x


def double_input(module, args):
    """Write the first argument."""
    args[0].mul_(2)


def double_keyword(module, args, kwargs):
    """Write a keyword argument."""
    kwargs["k"].mul_(2)


def triple_input(module, args, output):
    """Write the first argument, after the call."""
    args[0].mul_(3)


def triple_output(module, args, output):
    """Write the result."""
    output.mul_(3)


def test_pre_hook_writes_a_copy_that_forward_gets():
    """As with a clone on entry; on record with the argument's name and the hook's line."""
    net, x = Plus(), torch.ones(2)
    net.register_forward_pre_hook(double_input)
    with record() as log:
        assert net(x).tolist() == [3, 3]
    assert x.tolist() == [1, 1]
    assert [(m.argument, m.function) for m in log] == [("x", "double_input")]


def test_pre_hook_with_keywords():
    """They are inputs too."""
    net, x, k = Plus(), torch.ones(2), torch.ones(1)
    net.register_forward_pre_hook(double_keyword, with_kwargs=True)
    with record() as log:
        assert net(x, k=k).tolist() == [3, 3]
    assert k.tolist() == [1]
    assert [m.argument for m in log] == ["k"]


def test_pre_hook_that_returns_other_inputs():
    """A tuple, or one value, as without a guard."""
    for hook in (lambda m, a: (a[0] * 2,), lambda m, a: a[0] * 2):
        net, x = Plus(), torch.ones(2)
        net.register_forward_pre_hook(hook)
        assert net(x).tolist() == [3, 3]
        assert type(net(x)) is torch.Tensor


def test_a_hook_that_only_looks_changes_nothing():
    """The input that comes back is the very same object, and nothing is copied or recorded."""
    net, x, seen = Same(), torch.ones(2), []
    net.register_forward_pre_hook(lambda m, a: seen.append(a[0].sum().item()))
    net.register_forward_hook(lambda m, a, out: seen.append(out.sum().item()))
    with record() as log:
        assert net(x) is x
    assert seen == [2, 2]
    assert not log
    assert not log.copies


def test_post_hook_writes_a_copy_of_an_input():
    """Also where the result is the input; a result of the module's own is written in place."""
    x = torch.ones(2)
    for module, hook, out, written in (
        (Plus, triple_input, [2, 2], ["x"]),
        (Same, triple_output, [3, 3], ["x"]),
        (Plus, triple_output, [6, 6], []),
    ):
        net = module()
        net.register_forward_hook(hook)
        with record() as log:
            assert net(x).tolist() == out
        assert x.tolist() == [1, 1]
        assert [m.argument for m in log] == written


def test_strict_and_off():
    """The mode of the module is the mode of its hooks."""
    net, x = Plus(), torch.ones(2)
    net.register_forward_pre_hook(double_input)
    with mode("strict"), pytest.raises(InputMutationError, match="argument x"):
        net(x)
    assert x.tolist() == [1, 1]
    with mode("off"):
        assert net(x).tolist() == [3, 3]
    assert x.tolist() == [2, 2]


def test_declared_arguments_are_the_callers():
    """`Mutable` holds for hooks as well."""

    class Net(SafeModule):
        def forward(self, x: Mutable[torch.Tensor]):
            return x

    net, x = Net(), torch.ones(2)
    net.register_forward_pre_hook(double_input)
    assert net(x) is x
    assert x.tolist() == [2, 2]


def test_gradients():
    """Through what the hook wrote, and with a full backward hook beside it."""
    net, leaf = Plus(), torch.ones(2, requires_grad=True)
    net.register_forward_pre_hook(double_input)
    net.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    x = leaf * 1
    net(x).sum().backward()
    assert leaf.grad.tolist() == [2, 2]
    assert x.tolist() == [1, 1]


def test_an_error_in_a_hook():
    """Arrives as it is, and the input is what it was."""
    net, x = Plus(), torch.ones(2)

    def fails(module, args):
        args[0].add_(1)
        raise ValueError("mine")

    net.register_forward_pre_hook(fails)
    with pytest.raises(ValueError, match="mine"):
        net(x)
    assert x.tolist() == [1, 1]


def test_removed_copied_and_pickled():
    """As any hook."""
    net, x = Plus(), torch.ones(2)
    handle = net.register_forward_pre_hook(double_input)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin(x).tolist() == [3, 3]
        assert x.tolist() == [1, 1]
    assert "double_input" in repr(net._forward_pre_hooks)
    handle.remove()
    assert net(x).tolist() == [2, 2]


def test_order_and_options_are_torchs():
    """`prepend` and `always_call`."""
    net, x, order = Plus(), torch.ones(1), []
    net.register_forward_pre_hook(lambda m, a: order.append("second"))
    net.register_forward_pre_hook(lambda m, a: order.append("first"), prepend=True)
    net.register_forward_hook(lambda m, a, out: order.append("after"), always_call=True)
    net(x)
    assert order == ["first", "second", "after"]


def test_a_forward_assigned_to_the_instance():
    """Its arguments have the names of the new forward."""
    net, x = Plus(), torch.ones(2)
    net.forward = lambda boxes: boxes + 1
    net.register_forward_pre_hook(double_input)
    with record() as log:
        assert net(x).tolist() == [3, 3]
    assert x.tolist() == [1, 1]
    assert [m.argument for m in log] == ["boxes"]


def test_partial_and_method_hooks():
    """Are functions too."""

    class Owner:
        def hook(self, module, args):
            args[0].mul_(2)

    for hook in (Owner().hook, functools.partial(lambda k, m, a: a[0].mul_(k) and None, 2)):
        net, x = Plus(), torch.ones(1)
        net.register_forward_pre_hook(hook)
        net(x)
        assert x.tolist() == [1]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_hooks_that_others_look_for_stay_as_they_are():
    """`remove_spectral_norm` finds its own object; PyTorch's functions are left alone too."""

    class Net(SafeModule, nn.Linear):
        pass

    net = Net(2, 2)
    nn.utils.spectral_norm(net)
    assert not any(isinstance(hook, Hook) for hook in net._forward_pre_hooks.values())
    assert net(torch.ones(1, 2)).shape == (1, 2)
    nn.utils.remove_spectral_norm(net)
    assert not net._forward_pre_hooks
    net.register_forward_pre_hook(torch.nn.functional.relu)
    assert list(net._forward_pre_hooks.values()) == [torch.nn.functional.relu]


def test_compiled():
    """Traced whole; the hook writes a clone."""
    net, x = Plus(), torch.ones(2)
    net.register_forward_pre_hook(double_input)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert compiled(x).tolist() == [3, 3]
    assert x.tolist() == [1, 1]
