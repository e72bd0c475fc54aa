"""The user's own line."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import linecache
import threading
import traceback
import zipfile
from pathlib import Path

import pytest
import torch

from safemodule import _location, _modes
from safemodule._location import Location, locate

SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(marker):
    """Return the number of the one line of this file that ends with ``# <marker>``."""
    (number,) = [i for i, line in enumerate(SOURCE, 1) if line.endswith(f"# {marker}")]
    return number


class Spy(torch.Tensor):
    """Notes where it is touched, as the mechanism does, but for its own frames."""

    found: list[Location] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Spy.found.append(locate(depth=2))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _fresh():
    Spy.found.clear()


@pytest.fixture
def x():
    """Return a tensor that notes where it is touched."""
    return torch.zeros(3).as_subclass(Spy)


def the_location():
    """Return the one place where spies were touched."""
    (where,) = set(Spy.found)
    return where


def assert_here(marker, function):
    """The spies were touched at the marked line of this file, in this function, and only there."""
    where = the_location()
    assert where == Location(__file__, line_of(marker), function, __name__)
    assert where.line == SOURCE[where.lineno - 1].strip()


def test_method_call(x):
    """The plain case."""
    x.add_(1)  # method call
    assert_here("method call", "test_method_call")


def test_operator_statement(x):
    """An augmented assignment and an item assignment have no call in the source."""
    x += 1  # augmented
    assert_here("augmented", "test_operator_statement")
    Spy.found.clear()
    x[0] = 1  # item
    assert_here("item", "test_operator_statement")


def test_default_depth_starts_at_the_caller():
    """Without an argument it is the line of the call itself."""
    Spy.found.append(locate())  # default depth
    assert_here("default depth", "test_default_depth_starts_at_the_caller")


def test_inside_torch_functional(x):
    """torch.nn.functional writes on behalf of its caller."""
    torch.nn.functional.relu(x, inplace=True)  # functional
    assert_here("functional", "test_inside_torch_functional")


def test_inside_a_module_of_torch(x):
    """nn.ReLU inside nn.Sequential: the line that calls the outermost of them."""
    net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU(inplace=True))
    net(x)  # sequential
    assert_here("sequential", "test_inside_a_module_of_torch")


def test_inside_an_optimiser(x):
    """The update is written by torch.optim, below a profiler hook and a no_grad decorator."""
    parameter = x.requires_grad_()
    parameter.grad = torch.ones(3)
    optimiser = torch.optim.SGD([parameter], lr=0.1, foreach=False)
    Spy.found.clear()
    optimiser.step()  # optimiser
    assert_here("optimiser", "test_inside_an_optimiser")


def test_forward_of_a_user_module(x):
    """Frames between the write and the outer call do not matter: the innermost own line wins."""

    class Net(torch.nn.Module):
        def forward(self, x):
            return x.mul_(2)  # user forward

    torch.nn.Sequential(Net())(x)
    assert_here("user forward", "forward")


def test_below_torch_again(x):
    """A hook of the user, called by torch: the line in the hook."""
    net = torch.nn.Identity()
    net.register_forward_pre_hook(lambda module, args: args[0].zero_() and None)  # hook
    net(torch.zeros(1).as_subclass(Spy))
    assert_here("hook", "<lambda>")


def test_lambda_comprehension_and_nested_function(x):
    """The function is the innermost one, by its own name."""
    add = lambda: x.add_(1)  # lambda
    add()
    assert_here("lambda", "<lambda>")
    Spy.found.clear()

    def inner():
        x.add_(1)  # nested

    inner()
    assert_here("nested", "inner")


def test_through_the_standard_library(x):
    """functools, contextlib and threads call on behalf of the user."""

    class Net:
        step = functools.partialmethod(lambda self: x.add_(1))  # partial

    Net().step()
    assert_here("partial", "<lambda>")
    Spy.found.clear()
    add = functools.singledispatch(torch.nn.functional.relu_)
    add(x)  # dispatch
    assert_here("dispatch", "test_through_the_standard_library")
    Spy.found.clear()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.nn.functional.relu_, x)
        stack.close()  # exit stack
    assert_here("exit stack", "test_through_the_standard_library")


def test_own_frames_are_skipped(x):
    """What this package wraps around a call is not the user's."""
    _modes.mode("strict")(torch.nn.functional.relu_)(x)  # own frame
    assert_here("own frame", "test_own_frames_are_skipped")


def test_coroutine(x):
    """A coroutine has a line as any function."""

    async def work():
        await asyncio.sleep(0)
        x.add_(1)  # coroutine

    asyncio.run(work())
    assert_here("coroutine", "work")


@pytest.mark.parametrize(
    "source",
    [
        "x.add_(\n    1,\n)\n",
        "y = (\n    x\n    .mul(2)\n    .add_(1)\n)\n",
        "x[\n    0\n] = 1\n",
        "y = [\n    1,\n    x.add_(\n        1\n    ),\n]\n",
        "x.requires_grad_(\n    False\n).add_(\n    1\n)\n",
        "x \\\n    += 1\n",
    ],
)
def test_multi_line_statement_as_in_a_traceback(x, source):
    """Each line is the one that Python's own traceback names for the same operation."""
    code = compile(source, "cell.py", "exec")
    exec(code, {"x": x})
    found = list(Spy.found)
    for i in range(len(found)):  # raise at the i-th operation, and see what Python says
        Spy.found.clear()

        def raising(cls, func, types, args=(), kwargs=None, i=i):
            Spy.found.append(locate(depth=2))
            if len(Spy.found) > i:
                raise ZeroDivisionError
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

        raiser = type("Raiser", (torch.Tensor,), {"__torch_function__": classmethod(raising)})
        with pytest.raises(ZeroDivisionError) as caught:
            exec(code, {"x": torch.zeros(3).as_subclass(raiser)})
        frames = traceback.extract_tb(caught.value.__traceback__)
        (expected,) = [frame.lineno for frame in frames if frame.filename == "cell.py"]
        assert found[i].lineno == expected
    assert found


def test_multi_line_call_in_a_function(x):
    """The line on which the call stands, not the last of its arguments."""
    x.add_(  # multi-line
        torch.tensor(
            1.0,
        ),
    )
    assert_here("multi-line", "test_multi_line_call_in_a_function")


def test_executed_string_has_no_source_line(x):
    """No source, no line, no error."""
    exec("\nx.add_(1)", {"x": x, "__name__": "somewhere"})
    assert the_location() == Location("<string>", 2, "<module>", "somewhere")
    assert the_location().line == ""


def test_namespace_without_a_name(x):
    """A bare namespace has no module name, or None for one."""
    exec("x.add_(1)", {"x": x})
    exec("x.add_(1)", {"x": x, "__name__": None})
    assert the_location() == Location("<string>", 1, "<module>", "")


def test_notebook_cell(x):
    """A notebook puts the source of its cells into linecache, without a file."""
    name, source = "<ipython-input-3-abc>", ["import torch\n", "x.add_(1)  # cell\n"]
    linecache.cache[name] = (len("".join(source)), None, source, name)
    try:
        exec(compile("".join(source), name, "exec"), {"x": x})
        assert the_location()[:3] == (name, 2, "<module>")
        assert the_location().line == "x.add_(1)  # cell"
    finally:
        del linecache.cache[name]


def test_source_in_a_zip_archive(x, tmp_path, monkeypatch):
    """Source that only an import loader can read is found as well."""
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_net.py", "def forward(x):\n    return x.add_(1)\n")
    monkeypatch.syspath_prepend(archive)
    import zipped_net

    zipped_net.forward(x)
    assert the_location().line == "return x.add_(1)"


def test_line_is_read_when_asked_for(x, tmp_path):
    """locate() itself reads no file; an edited file is read again."""
    file = tmp_path / "net.py"
    file.write_text("x.add_(1)\n")
    exec(compile(file.read_text(), str(file), "exec"), {"x": x})
    where = the_location()
    assert len(linecache.cache.get(str(file), ())) <= 1  # a note of the loader at most
    assert where.line == "x.add_(1)"
    file.write_text("x.add_(1)  # edited\n")
    assert where.line == "x.add_(1)  # edited"


def test_other_packages_are_user_code(x, tmp_path):
    """Only torch's own folder is torch: not a neighbour, nor a folder of that name elsewhere."""
    ours = Path(_location.__file__).parent
    torch_dir = Path(torch.__file__).parent
    for path in [
        torch_dir.with_name("torchvision") / "models.py",
        torch_dir.with_name("torch_geometric.py"),
        ours.with_name("safemodule_zoo") / "net.py",
        tmp_path / "torch" / "net.py",
        Path(functools.__file__).parent / "site-packages" / "pkg" / "net.py",
    ]:
        Spy.found.clear()
        exec(compile("x.add_(1)", str(path), "exec"), {"x": x})
        assert the_location().filename == str(path)


def test_library_code_is_recognised_by_folder(x):
    """Whatever runs from torch's folder, generated at any depth, is torch."""
    for module in (torch, functools, _location):
        Spy.found.clear()
        path = str(Path(module.__file__).parent / "deep" / "new.py")
        exec(compile("x.add_(1)", path, "exec"), {"x": x})  # library code
        assert_here("library code", "test_library_code_is_recognised_by_folder")


def in_bare_thread(func, *args):
    """Call ``func`` in a thread, with no frame of this file below it."""
    thread = threading.Thread(target=func, args=args)
    thread.start()
    thread.join()


def test_stack_of_library_code_only(x):
    """In a worker thread of torch the outermost frame of torch is the best there is."""
    in_bare_thread(torch.nn.ReLU(inplace=True), x)
    where = the_location()
    assert where.filename.startswith(str(Path(torch.__file__).parent))
    assert where.module == "torch.nn.modules.module"
    assert where.function == "_wrapped_call_impl"


def test_stack_of_the_standard_library_only():
    """Without a frame of torch it is the outermost frame of all."""
    in_bare_thread(lambda: Spy.found.append(locate(depth=2)))
    assert (the_location().module, the_location().function) == ("threading", "_bootstrap")


def test_holds_no_frame():
    """A location is text and a number: it keeps no local variable of anyone alive."""
    assert [type(field) for field in locate()] == [str, int, str, str]


def test_memo_of_files_is_bounded(x, monkeypatch):
    """Notebook cells never end; the memo does, and the answers stay right."""
    monkeypatch.setattr(_location, "_KINDS_MAX", 8)
    for i in range(50):
        Spy.found.clear()
        exec(compile("x.add_(1)", f"<cell-{i}>", "exec"), {"x": x})
        assert the_location().filename == f"<cell-{i}>"
        torch.nn.functional.relu(x, inplace=True)
        assert Spy.found[-1].filename == __file__
        assert len(_location._kinds) <= 8
