"""The house keeps its floors: what people reuse never needs what only the lessons need."""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import mgpu_helpers
from conftest import run_python

HOUSE = Path(mgpu_helpers.__file__).parent


def name_of(file: Path) -> str:
    parts = file.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_of(file): file for file in sorted(HOUSE.rglob("*.py"))}
ROOMS = sorted(each.name for each in pkgutil.iter_modules([str(HOUSE)]) if each.name[0] != "_")


def imports(file: Path, types: bool = True) -> set[str]:
    """List the modules of the house that a file imports anywhere, also for types only."""
    found, tree = set(), ast.parse(file.read_text())
    tree.body = [each for each in tree.body
                 if types or ast.unparse(getattr(each, "test", [])) != "TYPE_CHECKING"]  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mgpu_helpers"):
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name.startswith("mgpu_helpers")}
    return found


def test_nothing_outside_the_lessons_imports_from_them():
    for name, file in MODULES.items():
        below = [each for each in imports(file) if each.startswith("mgpu_helpers.lessons")]
        assert not below or name.startswith("mgpu_helpers.lessons"), name


def test_no_module_of_the_house_needs_one_that_needs_it():
    graph = {name: imports(file, types=False) & {*MODULES} for name, file in MODULES.items()}
    del graph["mgpu_helpers"]  # which is there before all others, and needs none
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_a_docstring(room: str):
    module = importlib.import_module(f"mgpu_helpers.{room}")
    assert inspect.getdoc(module)
    public = getattr(module, "__all__", [name for name in vars(module) if name[0] != "_"])
    for name in public:
        value = getattr(module, name)
        ours = getattr(value, "__module__", "").startswith("mgpu_helpers")
        if ours and (inspect.isfunction(value) or inspect.isclass(value)):
            assert inspect.getdoc(value), f"{room}.{name}"


def test_help_names_every_room_and_calls_what_there_is():
    said, named = inspect.getdoc(mgpu_helpers), {"lessons"}
    for text in re.findall(rf"\b(?:{'|'.join(ROOMS)})\.\w+\([^()]*\)", said):
        call = ast.parse(text, mode="eval").body
        room, name = call.func.value.id, call.func.attr
        function = getattr(importlib.import_module(f"mgpu_helpers.{room}"), name)
        inspect.signature(function).bind(*call.args, **{each.arg: 0 for each in call.keywords})
        named.add(room)
    assert named == set(ROOMS) and len(named - {"lessons"}) <= 15


@pytest.mark.parametrize("room, others", [
    ("_names", ""), ("nvml", ""), ("timing", "_formatting"),
    ("scaling", "_gone _later _formatting"), ("charts", "_names _formatting"),
    ("towers", "_gone _train _formatting"),
    ("trace", "_given _later _models _files _names _private _quiet _formatting"),
    ("fit", "devices nvml _files _given _gone _later _layers _models _names _train _private _quiet "
            "graph pipeline towers trace _formatting"),
    ("cluster", "_processes devices _files _formatting _later _names nvml _private _quiet"),
    ("whatif", "_given _gone _later _models _files _names _private _quiet scaling timing trace "
               "_formatting"),
])  # fmt: skip
def test_a_room_loads_what_it_needs_and_no_more(room: str, others: str):
    code = (
        f"import sys, mgpu_helpers.{room}\n"
        "rooms = {n.split('.')[1] for n in sys.modules if n.startswith('mgpu_helpers.')}\n"
        "print(*sorted(rooms | ({'tensorflow', 'matplotlib', 'scipy'} & set(sys.modules))))"
    )
    loaded = run_python(code, imported=False).stdout.split()
    assert {*loaded} <= {room, *others.split()}
