"""Private names of torch: each exists here, and where one is hidden the fallback does the same."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import types

import pytest
import torch
import torch.utils._pytree as pytree
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

import safemodule
from safemodule import _compat
from tests.helpers import compare_with_clones, safe
from tests.zoo import edges

SOURCE = pathlib.Path(_compat.__file__)

# Where each name lives, and what of `_compat` stands on it.
NAMES = {
    "_disabled_torch_function_impl": torch._C,
    "DisableTorchFunctionSubclass": torch._C,
    "_swap_tensor_impl": torch._C,
    "_is_alias_of": torch._C,
    "_set_grad_enabled": torch._C,
    "_get_tracing_state": torch._C,
    "_len_torch_dispatch_stack": torch._C,
    "_are_functorch_transforms_active": torch._C,
    "_storage_Use_Count": torch._C,
    "_use_count": torch.Tensor,
    "_current_level": forward_ad,
    "_fix_weakref": torch.Tensor,
    "_backward_cls": torch.autograd.Function,
    "SUPPORTED_NODES": pytree,
    "_top_saved_tensors_default_hooks": torch._C._autograd,
    "_disable_current_modes": _python_dispatch,
}


# The first release that has them, where it is not the oldest that this library claims.
SINCE = {"_top_saved_tensors_default_hooks": "2.7"}


@pytest.mark.parametrize("name", NAMES)
def test_exists(name):
    """The name is there on this torch, so what is measured is the fast way."""
    since = SINCE.get(name, "2.6")
    if torch.__version__ < since:
        pytest.skip(f"new in torch {since}")
    assert hasattr(NAMES[name], name)


def test_the_table_is_complete():
    """Every name that `_compat` looks up with a fallback is tested here."""
    text = SOURCE.read_text(encoding="utf-8")
    looked_up = set(re.findall(r'(?:get|has)attr\(\s*[\w.]+,\s*"(\w+)"', text))
    assert looked_up - {"only_watches", "_lazy_clone"} <= set(NAMES)


class Hides:
    """An object of torch without some of its names."""

    def __init__(self, real, *names):
        self._real, self._names = real, names

    def __getattr__(self, name):
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._real, name)


def without(*names):
    """Load `_compat` afresh as on a torch that lacks some names."""
    source = SOURCE.read_text(encoding="utf-8")
    source = source.replace("= torch._C\n", "= Hides(torch._C, *NAMES)\n")
    # Line for line, so that coverage finds the fallbacks where they stand.
    source = source.replace("\nimport torch.utils._pytree as pytree\n", "\n\n")
    source = source.replace("\nfrom torch import Tensor\n", "\n\n")
    source = source.replace("\nfrom torch.autograd import forward_ad\n", "\n\n")
    module = types.ModuleType("compat_without")
    module.__dict__.update(
        Hides=Hides,
        NAMES=names,
        Tensor=Hides(torch.Tensor, *names),
        pytree=Hides(pytree, *names),
        forward_ad=Hides(forward_ad, *names),
    )
    exec(compile(source, str(SOURCE), "exec", dont_inherit=True), module.__dict__)
    return module


def test_run_plain():
    """Runs a function with the interception off, arguments by position and by keyword."""
    t = safemodule.freeze(torch.ones(2))
    fallback = without("_disabled_torch_function_impl").run_plain
    assert fallback is not _compat.run_plain
    for run in (_compat.run_plain, fallback):
        out = run(torch.add, (), (t, 1), {"alpha": 2})
        assert out.tolist() == [3, 3]
        assert type(run(torch.Tensor.view_as, (), (t, t))) is torch.Tensor


def test_is_alias():
    """Same storage or not; tensors without a storage are nobody's alias."""
    x = torch.zeros(4)
    sparse = torch.eye(2).to_sparse()
    fallback = without("_is_alias_of").is_alias
    for ask in (_compat.is_alias, fallback):
        assert ask(x, x[1:])
        assert ask(x, x.detach())
        assert not ask(x, x.clone())
        assert not ask(x, sparse)


def test_set_grad_enabled():
    """Sets the mode."""
    fallback = without("_set_grad_enabled").set_grad_enabled
    for setter in (_compat.set_grad_enabled, fallback):
        setter(False)
        off = torch.is_grad_enabled()
        setter(True)
        assert (off, torch.is_grad_enabled()) == (False, True)


def test_tracing_questions():
    """Without the names nothing is being traced, as far as anybody can tell."""
    bare = without(
        "_get_tracing_state",
        "_len_torch_dispatch_stack",
        "_are_functorch_transforms_active",
    )
    for module in (_compat, bare):
        assert module.tracing_state() is None
        assert not module.dispatch_modes()
        assert not module.transforms_active()


def test_tracing_questions_are_answered():
    """With the names the answers are right."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Pass(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Pass():
        assert _compat.dispatch_modes() == 1
        assert not _compat.modes_only_watch()
    seen = []
    torch.func.vmap(lambda x: (seen.append(bool(_compat.transforms_active())), x)[1])(torch.ones(1))
    assert seen == [True]


def test_saved_tensor_hooks(monkeypatch):
    """The innermost pair, None where there is none or the name is missing."""
    pair = (lambda t: t), (lambda t: t)
    name = "_top_saved_tensors_default_hooks"
    assert _compat.saved_tensor_hooks() is None
    with torch.autograd.graph.saved_tensors_hooks(*pair):
        if torch.__version__ >= SINCE[name]:
            assert tuple(_compat.saved_tensor_hooks()) == pair
        monkeypatch.delattr(torch._C._autograd, name, raising=False)
        assert _compat.saved_tensor_hooks() is None


def test_outside_modes(monkeypatch):
    """No dispatch mode is active inside the block; without the name the block does nothing."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Pass(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Pass():
        with _compat.outside_modes():
            assert not _compat.dispatch_modes()
        assert _compat.dispatch_modes() == 1
        with monkeypatch.context() as hidden:
            hidden.delattr(_python_dispatch, "_disable_current_modes")
            with _compat.outside_modes():
                assert _compat.dispatch_modes() == 1


def test_forward_ad_active():
    """True inside a dual level; without the name always, which is the safe answer."""
    assert not _compat.forward_ad_active()
    with forward_ad.dual_level():
        assert _compat.forward_ad_active()
    assert without("_current_level").forward_ad_active()


def test_alone():
    """A thing that one local variable holds; one more holder counts one more."""
    thing = object()
    assert sys.getrefcount(thing) == _compat.ALONE
    holder = [thing]
    assert sys.getrefcount(thing) == _compat.ALONE + len(holder)


def test_fix_weakref():
    """Asks torch where it knows how; else there is nothing to do."""
    x = torch.zeros(1)
    assert _compat.fix_weakref(x) is None
    assert without("_fix_weakref").fix_weakref(x) is None


def test_context_class_of():
    """The class of a custom Function's contexts; None where torch does not tell."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            kinds.append(type(ctx))
            return x * 2

    kinds = []
    Double.apply(torch.zeros(1))
    assert _compat.context_class_of(Double) is kinds[0]
    assert _compat.context_class_of(object) is None


def test_storage_owners():
    """How many tensors share a storage."""
    x = torch.zeros(2)
    assert _compat.storage_owners(x) == 1
    y = x[:1]
    assert _compat.storage_owners(x) == 2
    assert y.numel() == 1


@pytest.mark.parametrize("name", ["_storage_Use_Count", "_use_count"])
def test_counts_do_not_tell_without(name):
    """Without the counts, the flags decide."""
    assert without(name).COUNTS_TELL is False


def test_pytree_nodes():
    """Without the registry no container type is known beyond the built-in ones."""
    assert _compat.pytree_node(dict) is not None
    bare = without("SUPPORTED_NODES")
    assert bare.pytree_node(dict) is None


def test_container_that_is_registered():
    """One that pytree knows already is left as it is."""
    before = pytree.SUPPORTED_NODES[dict]
    _compat.register_container(dict, list, dict)
    assert pytree.SUPPORTED_NODES[dict] is before


def test_swap():
    """Exchanges the implementations of two tensors."""
    a, b = torch.zeros(2), torch.ones(3)
    _compat.swap(a, b)
    assert (a.tolist(), b.tolist()) == ([1, 1, 1], [0, 0])


def run(script):
    """Run a script in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_swap_inputs_are_cloned_on_entry():
    """The degraded way: same results, and one warning that says so."""
    out = run(
        """
        import warnings
        import torch
        del torch._C._swap_tensor_impl
        from safemodule import SafeModule, freeze, freeze_inputs, _compat
        assert not _compat.CAN_SWAP

        @freeze_inputs
        def forward(x, batch):
            v = x[0]
            x.add_(1)
            batch["k"].mul_(3)
            return x, v, batch["k"]

        class Net(SafeModule):
            def forward(self, x):
                return x.add_(1)

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                x, batch = torch.zeros(2, 2), {"k": torch.ones(1)}
                a, v, k = forward(x, batch)
                assert a.tolist() == [[1, 1], [1, 1]] and v.tolist() == [1, 1] and k.tolist() == [3]
                assert x.tolist() == [[0, 0], [0, 0]] and batch["k"].tolist() == [1]
                assert type(a) is type(v) is type(k) is torch.Tensor
            x = torch.zeros(1)
            assert Net()(x).tolist() == [1] and x.tolist() == [0]
            t = freeze(x)
            t.add_(1)
            assert x.tolist() == [0]
            assert freeze_inputs(lambda x: x)(x) is x
        print([str(w.message).split(",")[0].split(" has ")[1] for w in seen])
        """
    )
    assert out.strip() == "['no torch._C._swap_tensor_impl']"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="copies a process that has imported torch")
def test_the_library_works_without_each_name():
    """All results are the same whichever name is hidden; losing the exchange is said, once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hidden_names"],
        cwd=pathlib.Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    everything = found.pop("")
    assert everything["warnings"] == []
    assert {"_swap_tensor_impl", "_schema", "_make_subclass", "_TorchDynamoContext"} <= set(found)
    for name, lacking in found.items():
        swaps = name != "_swap_tensor_impl"
        kinds = everything["asked"][name]
        expected = {
            what: value
            for what, (kind, needs_swap, value) in everything["values"].items()
            if kind in kinds and (swaps or not needs_swap)
        }
        values = {what: value for what, (_, _, value) in lacking["values"].items()}
        assert values == expected, name
        assert len(lacking["warnings"]) == (not swaps), lacking["warnings"]


# -- where use counts do not tell ------------------------------------------------------------------


@pytest.fixture
def no_counts(monkeypatch):
    """Run as on a torch whose use counts do not show what autograd saved."""
    from safemodule import _tensor

    for name, module in list(sys.modules.items()):
        if name.startswith("safemodule.") and hasattr(module, "COUNTS_TELL"):
            monkeypatch.setattr(module, "COUNTS_TELL", False)
    memo = dict(_tensor._WAYS)
    _tensor._WAYS.clear()
    yield
    _tensor._WAYS.clear()
    _tensor._WAYS.update(memo)


@pytest.mark.parametrize("edge", edges(), ids=lambda edge: edge.__name__)
def test_zoo_without_use_counts(edge, no_counts):
    """The whole zoo is right without them; only more may be copied."""
    plain = edge()
    compare_with_clones(
        safe(edge)(),
        plain,
        edge.inputs,
        reference=plain.reference if edge.refused else None,
        strides=edge.dense,
        exact=not edge.refused,
    )
