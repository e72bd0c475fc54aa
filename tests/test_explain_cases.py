"""`explain()` names the right two lines for programs that PyTorch refuses."""

from __future__ import annotations

import re

import pytest
import torch

from safemodule._errors import InplaceError
from safemodule._explain import explain, explanation_of
from tests import explain_cases
from tests.explain_cases import BACKWARD, FORWARD

VERSIONS = re.compile(r"\[(\S+) \[([\d, ]*)\]\].*(is at version \d+; expected version \d+ instead)")


def plain_error(case):
    """Return PyTorch's own error."""
    torch.manual_seed(0)
    with pytest.raises(RuntimeError) as info:
        case.run()
    assert type(info.value) is RuntimeError
    return info.value


def explained(case):
    """Return the error under `explain()` and its parts."""
    torch.manual_seed(0)
    with pytest.raises(InplaceError) as info, explain():
        case.run()
    found = explanation_of(info.value)
    assert found is not None
    return info.value, found


def events(found, kind):
    """Return the events of a kind that have a line."""
    return [e for e in found.events if e.kind == kind and e.where is not None]


@pytest.mark.parametrize("case", BACKWARD, ids=lambda case: case.id)
def test_backward(case):
    """Saver and writers are the marked lines; PyTorch's own words stay in the text."""
    plain = plain_error(case)
    error, found = explained(case)
    saved, written = events(found, "saved"), events(found, "written")
    assert [e.where.lineno for e in saved] == case.lines("saves")
    assert [e.where.lineno for e in written] == case.lines("writes")
    assert {e.where.filename for e in saved + written} == {explain_cases.__file__}
    assert found.tensor == case.tensor
    assert found.name == case.name
    assert case.op in saved[0].text
    assert case.role in found.role
    assert bool(case.role) == bool(found.role)
    assert found.fixes
    assert (
        "one of the variables needed for gradient computation has been modified by an inplace"
        in (str(error))
    )
    assert VERSIONS.search(str(plain)).groups() == VERSIONS.search(str(error)).groups()


@pytest.mark.parametrize("case", FORWARD, ids=lambda case: case.id)
def test_forward(case):
    """What was written, its name, where it became what it is, and a fix are added."""
    plain = plain_error(case)
    error, found = explained(case)
    assert str(error).startswith(str(plain))
    last = found.events[-1]
    assert [last.where.lineno] == case.lines("writes")
    assert [e.where.lineno for e in events(found, "made")] == case.lines("makes")
    assert found.tensor == case.tensor
    assert found.name == case.name
    assert case.op in last.text
    assert case.role in found.role
    assert bool(case.role) == bool(found.role)
    assert found.fixes


@pytest.mark.parametrize("case", BACKWARD + FORWARD, ids=lambda case: case.id)
def test_text(case):
    """Each line, its source and each fix stand in the message."""
    error, found = explained(case)
    text = str(error)
    for event in found.events:
        if event.where is not None:
            assert f"{event.where.filename.rpartition('/')[2]}:{event.where.lineno}" in text
            assert event.where.line in text
    for fix in found.fixes:
        assert fix in text
    assert text == str(found)
