"""The examples in the docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import mgpu_helpers
from build_site import ROOMS, public

MODULES = sorted(
    each.name
    for each in pkgutil.walk_packages(mgpu_helpers.__path__, "mgpu_helpers.")
    if not each.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(plan, name: str, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)  # some write a file
    module = importlib.import_module(name)
    room = importlib.import_module(".".join(name.split(".")[:2]))
    names = vars(room) | vars(module) | {"np": np, "tf": tf, "plan": plan}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name, globs=names):
        runner.run(example, out=said.append)
    plt.close("all")
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_function_has_an_example(room: str):
    functions = [each for each in map(inspect.unwrap, public(room).values())
                 if inspect.isfunction(each)]  # fmt: skip
    bare = [each.__name__ for each in functions if ">>>" not in (each.__doc__ or "")]
    assert not bare, f"{room} has no example for {', '.join(bare)}"


def test_every_room_has_a_page_on_the_site():
    rooms = {name.split(".")[1] for name in MODULES if "._" not in name}
    only_others_use = {"lessons"}
    assert rooms == {*ROOMS, *only_others_use}
