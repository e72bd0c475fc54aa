"""Modules from public reports: the caller is untouched, and what was written is on record.

`LIMITS` lists the reports that no library at this layer can help with, each with the reason; those
behave exactly as with a plain module.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest
import torch

import tests.cases
from safemodule import InputMutationError, mode, record
from tests.helpers import (
    Caller,
    assert_plain,
    assert_same_results,
    cloned,
    gradients,
    leaves,
    safe,
    same,
    walk,
)

CASES = {
    module.name: importlib.import_module(f"tests.cases.{module.name}")
    for module in pkgutil.iter_modules(tests.cases.__path__)
}

NUMPY = "the argument is a numpy array, which is no tensor: torch never sees whose memory it is"
OBJECT = "the argument is an object of an unknown class, which is passed through as it is"
LOCAL = "what is written is a local tensor, not an argument: freeze(t) protects it"
STATE = "what is written is a parameter or buffer of the module itself, which is its own to write"

# Nothing protects the caller in these: the call is that of a plain module.
UNPROTECTED = {
    "c_numpy_readonly": NUMPY,
    "env_numpy_buffer_reuse": NUMPY,
    "tv_totensor_normalize_alias": NUMPY,
    "pyg_shallow_copied_data": OBJECT,
    "kv_cache_object_grows": OBJECT,
    "c_custom_op_mutates_args": "the custom op lies about what it writes: detected, not prevented",
}
# The caller is untouched by plain PyTorch as well; the trouble is elsewhere, and stays.
ELSEWHERE = {
    "c_make_const_debug": LOCAL,
    "inference_tensor_write": LOCAL,
    "recurrent_state_retained": LOCAL,
    "liger_ce_grad_into_logits": LOCAL + "; and the write is a raw one that torch never sees",
    "gan_step_between_backwards": STATE,
    "static_output_buffer": STATE,
    "backward_mutates_grad_output": "the backward of a custom Function writes its gradient",
    "backward_hook_inplace_relu": LOCAL
    + ", behind a hook; the guard adds no such error of its own",
}
# Those that plain PyTorch refuses in forward.
RAISES = {"inference_tensor_write", "backward_hook_inplace_relu"}
LIMITS = {**UNPROTECTED, **ELSEWHERE}

pytestmark = pytest.mark.filterwarnings(
    "ignore:The given NumPy array is not writable:UserWarning",  # c_numpy_readonly's own
    "ignore:.*torch.jit.*",
)


def names(case):
    """Return the paths of all arguments that the report says are changed, by parameter name."""
    parameters = list(inspect.signature(case.M.forward).parameters)[1:]

    def name(path):
        return re.sub(r"^\[(\d+)\]", lambda m: parameters[int(m[1])], path)

    return {name(path) for path in case.WRITTEN}, {name(path) for path in case.REBOUND}


def run(module, args):
    """Run a module; return its result, or what it raises."""
    torch.manual_seed(0)
    try:
        return module(*args), None
    except RuntimeError as error:
        return None, str(error).split("\n", maxsplit=1)[0]


def build(case, guarded):
    """Return the reported module, always with the same parameters."""
    torch.manual_seed(0)
    return safe(case.M)() if guarded else case.M()


def arguments(case):
    """Return the caller's arguments, always the same."""
    torch.manual_seed(1)
    return case.inputs()


every = pytest.mark.parametrize("name", CASES)
protected = pytest.mark.parametrize("name", [n for n in CASES if n not in UNPROTECTED])


def test_all_cases_are_here():
    """No case is lost, and the tables name cases that exist."""
    assert len(CASES) == 43
    assert set(LIMITS) <= set(CASES)


@every
def test_the_report_is_live(name):
    """A plain module does to the caller what the report says: else the case proves nothing."""
    case = CASES[name]
    args = arguments(case)
    caller = Caller(*args)
    _, error = run(build(case, guarded=False), args)
    refused = (
        getattr(case, "REFUSED", False) and name != "error_after_the_write"
    )  # which catches it
    assert (error is not None) == (refused or name in RAISES)
    if not case.WRITTEN and not case.REBOUND:
        caller.check()
        return
    if LIMITS.get(name) == NUMPY:
        return  # arrays are no tensors: see `test_unprotected`
    with pytest.raises(AssertionError):
        caller.check()


@protected
def test_the_caller_is_untouched(name):
    """Every tensor and container reachable from the arguments is what it was."""
    case = CASES[name]
    args = arguments(case)
    caller = Caller(*args)
    out, error = run(build(case, guarded=True), args)
    assert (error is not None) == (name in RAISES)
    assert_plain(out)
    caller.check()


@protected
def test_every_written_or_rebound_argument_is_on_record(name):
    """With path and line; and nothing is where nothing is written."""
    case = CASES[name]
    written, rebound = names(case)
    with record() as log:
        run(build(case, guarded=True), arguments(case))
    if getattr(case, "REFUSED", False):
        # Plain PyTorch refuses the write; on a copy it succeeds, and is logged.
        assert len(log) == 1
        written = {log[0].argument}
    assert {m.argument for m in log if m.kind == "tensor"} == written
    assert {m.argument for m in log if m.kind == "container"} == rebound
    assert len(written | rebound) == len({m.argument for m in log})
    lines, _ = inspect.getsourcelines(case)
    for m in log:
        assert m.filename == case.__file__
        assert lines[m.lineno - 1].strip() == m.line
        assert m.function in ("forward", "fused_add_norm", "f")


@protected
def test_results_are_those_of_clones(name):
    """Equal to the same forward with every input cloned on entry."""
    case = CASES[name]
    theirs = arguments(case)
    expected, error = run(build(case, guarded=False), cloned(theirs))
    out, mine = run(build(case, guarded=True), arguments(case))
    if name == "no_grad_view_written":
        assert error is not None  # refused on clones as well
        assert out.item() == 6.0
        return
    assert mine == error
    assert_same_results(out, expected)


@pytest.mark.parametrize("name", [n for n in CASES if LIMITS.get(n) is None])
def test_second_call_gives_the_same(name):
    """The damage of the reports is often seen at the second call with the same arguments."""
    case = CASES[name]
    args = arguments(case)
    module = build(case, guarded=True)
    first, _ = run(module, args)
    first = cloned(first)
    again, _ = run(module, args)
    assert_same_results(again, first, strides=False)


@pytest.mark.parametrize("name", [n for n in CASES if n not in LIMITS])
def test_backward_works(name):
    """The gradient is that of clones, or where autograd refuses those, there is one at all."""
    case = CASES[name]
    mine, theirs = arguments(case), arguments(case)
    module, plain = build(case, guarded=True), build(case, guarded=False)
    out, _ = run(module, mine)
    expected, error = run(plain, cloned(theirs))
    grads = gradients(out, [*leaves(*mine), *module.parameters()])
    try:
        wanted = gradients(expected, [*leaves(*theirs), *plain.parameters()]) if not error else None
    except RuntimeError as refusal:
        assert "modified by an inplace operation" in str(refusal)  # noqa: PT017
        wanted = None
    if wanted is None:
        assert any(grad is not None for grad in grads)
        return
    for grad, want in zip(grads, wanted, strict=True):
        assert (grad is None) == (want is None)
        if grad is not None:
            same(grad, want)


@pytest.mark.parametrize(
    "name", [n for n in CASES if n not in LIMITS and (CASES[n].WRITTEN or CASES[n].REBOUND)]
)
def test_strict_raises_before_anything_has_changed(name):
    """At the line that a record would name."""
    case = CASES[name]
    with record() as log:
        run(build(case, guarded=True), arguments(case))
    args = arguments(case)
    caller = Caller(*args)
    with mode("strict"), pytest.raises(InputMutationError) as caught:
        build(case, guarded=True)(*args)
    caller.check()
    assert caught.value.mutation.site == log[0].site


def test_declared_as_mutable():
    """The static cache is meant to be written: declared, it is, and there is no report of it."""
    case = CASES["static_kv_cache_slice_write"]
    module = safe(case.M, mutable=("cache",))()
    x, cache, position = arguments(case)
    with record() as log:
        module(x, cache, position)
    assert list(log) == []
    assert cache[0][0, 0].tolist() == x[0, 0].tolist()


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNPROTECTED)
def test_unprotected(name):
    """A report that is out of reach: result and damage are those of a plain module."""
    case = CASES[name]
    mine, theirs = arguments(case), arguments(case)
    out, error = run(build(case, guarded=True), mine)
    expected, expected_error = run(build(case, guarded=False), theirs)
    assert error == expected_error
    assert_same_results(out, expected)
    damaged = walk(list(theirs))
    untouched = walk(list(arguments(case)))
    harmed = False
    for path, part in walk(list(mine)).items():
        if isinstance(part, torch.Tensor) or hasattr(part, "__array__"):
            mine_now, theirs_now = torch.tensor(part.tolist()), torch.tensor(damaged[path].tolist())
            same(mine_now, theirs_now)
            harmed |= mine_now.tolist() != untouched[path].tolist()
    assert harmed, "nothing was changed: the case is no limit"


def test_an_undeclared_write_of_a_custom_op_is_detected():
    """It is reported with the argument's name when forward returns, and strict raises."""
    case = CASES["c_custom_op_mutates_args"]
    with record() as log:
        build(case, guarded=True)(*arguments(case))
    (m,) = log
    assert (m.argument, m.kind) == ("x", "unseen")
    with mode("strict"), pytest.raises(InputMutationError, match="argument x"):
        build(case, guarded=True)(*arguments(case))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere(name):
    """A report about something else than an argument: the backward is that of a plain module."""
    case = CASES[name]
    outcomes = []
    for guarded in (True, False):
        args = arguments(case)
        module = build(case, guarded=guarded)
        out, error = run(module, args)
        try:
            grads = gradients(out, [*leaves(*args), *module.parameters()])
            outcomes.append((error, [None if g is None else g.tolist() for g in grads]))
        except RuntimeError as refusal:
            outcomes.append((error, re.sub(r"0x\w+", "", str(refusal))))
    assert outcomes[0] == outcomes[1]
