"""Random programs over nested containers: as if the caller's had been copied on entry.

Each seed makes a nested value of dicts, ordered dicts, lists and tuples, and a program that changes,
reads and walks it. Guarded, it returns and sees what it would on a deep copy, and the caller's value
is untouched.
"""

from __future__ import annotations

import collections
import copy
import random

import pytest

from safemodule import InputMutationError, freeze_inputs, mode, record

KEYS = "abcd"


def make(rng, depth=0):
    """Return a random nested value."""
    kind = rng.randrange(7 if depth < 3 else 3)
    if kind < 3:
        return [rng.randrange(10), f"s{rng.randrange(5)}", None][kind]
    items = [make(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 3:
        return items
    if kind == 4:
        return tuple(items)
    cls = dict if kind == 5 else collections.OrderedDict
    return cls((rng.choice(KEYS), item) for item in items)


def containers(value):
    """Return every dict and list inside a value, itself included."""
    found = [value] if isinstance(value, (list, dict)) else []
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        for item in items:
            found.extend(containers(item))
    return found


def change_dict(d, rng, seen):
    """Do one thing to a dict."""
    key = rng.choice(KEYS)
    actions = [
        lambda: d.__setitem__(key, make(rng, 2)),
        lambda: d.__delitem__(key),
        lambda: seen.append(repr(d.pop(key))),
        lambda: seen.append(repr(d.popitem())),
        lambda: d.update({key: 1, "z": [2]}),
        lambda: seen.append(repr(d.setdefault(key, [1]))),
        lambda: d.__ior__({key: 5}),
        lambda: seen.append(repr(d | {key: 1})),
        lambda: seen.append((key in d, len(d), list(d), repr(d.get(key)))),
        lambda: d.clear(),
        lambda: seen.append(repr({**d})),
    ]
    rng.choice(actions)()


def change_list(x, rng, seen):
    """Do one thing to a list."""
    i = rng.randrange(-3, 4)
    actions = [
        lambda: x.append(make(rng, 2)),
        lambda: x.__setitem__(i, make(rng, 2)),
        lambda: x.__delitem__(i),
        lambda: seen.append(repr(x.pop(i))),
        lambda: x.insert(i, 7),
        lambda: x.__setitem__(slice(i, None), [1, 2]),
        lambda: x.__iadd__([3]),
        lambda: x.reverse(),
        lambda: x.sort(key=repr),
        lambda: x.extend(item for item in (1,)),
        lambda: seen.append(repr([*x[i:], 1])),
        lambda: seen.append((x == list(x), len(x), repr(x), [1] in x)),
        lambda: x.remove(7),
    ]
    rng.choice(actions)()


def program(value, seed):
    """Run a random program; return the value and all that it saw."""
    rng = random.Random(seed)
    seen = []
    for _ in range(12):
        container = rng.choice(containers(value))
        change = change_dict if isinstance(container, dict) else change_list
        try:
            change(container, rng, seen)
        except (KeyError, IndexError, ValueError) as error:
            seen.append((type(error).__name__, str(error)))
    return value, seen


def shape(value):
    """Return the types of all parts."""
    if isinstance(value, dict):
        return type(value), [shape(item) for item in value.values()]
    if isinstance(value, (list, tuple)):
        return type(value), [shape(item) for item in value]
    return type(value)


@pytest.mark.parametrize("block", range(10))
def test_random_programs(block):
    """Results, types and the caller's value, for forty seeds."""
    guarded = freeze_inputs(program)
    for seed in range(block * 40, block * 40 + 40):
        value = [make(random.Random(seed)), {"k": make(random.Random(-seed), 1)}]
        keep = copy.deepcopy(value)
        expected = program(copy.deepcopy(value), seed)
        with record() as log:
            out = guarded(value, seed)
        assert repr(value) == repr(keep), seed
        assert repr(out) == repr(expected), seed
        assert shape(out) == shape(expected), seed
        changed = repr(expected[0]) != repr(keep)
        assert len(log) > 0 or not changed, seed
        assert out[0] is value or len(log) > 0, seed
        if changed:
            with mode("strict"), pytest.raises(InputMutationError):
                guarded(value, seed)
            assert repr(value) == repr(keep), seed
