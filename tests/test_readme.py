"""What the README, `help(mgpu_helpers)` and the page of the package show is there and runs."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest

import draw_readme
import mgpu_helpers
from conftest import ROOT
from mgpu_helpers import fit, memory
from mgpu_helpers.__main__ import COMMANDS, DESCRIPTION
from test_house import ROOMS

PACKAGE = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_to_what_is_there():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links and not [where for where in links if not (ROOT / where).exists()]


def test_what_to_take_when_is_said_alike_everywhere():
    def said(text):
        plain = " ".join(text.replace("`", "").replace("\n- ", "\n").split())
        return re.findall(r"Take (?:fit|mgpu)\S* (?:train\.py )?when .+?\w\.(?!\w)", plain)

    start = README.partition("**Put `fit`")[2].partition("**It does not fit?**")[0]
    page = (ROOT / "docs" / "fit.md").read_text(encoding="utf-8")
    assert said(start) == said(page) == said(fit.__doc__) == said(DESCRIPTION)
    assert len(said(page)) == 3


def test_two_lines_put_fit_on_two_devices(plan, monkeypatch):
    monkeypatch.setenv("MGPU_DEVICES", "2")
    model = draw_readme.run(ROOT / "README.md", "fit.strategy")["model"]
    assert model.distribute_strategy.num_replicas_in_sync == 2
    assert len(model.history.history["val_accuracy"]) == 3


@pytest.mark.thorough
def test_the_table_of_what_to_try_is_what_plan_says_of_resnet50(keras):
    model = keras.applications.ResNet50(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    (call,) = re.findall(r"`memory\.plan\(model, (.+?)\)`", README)
    printed = repr(memory.plan(model, **eval(f"dict({call})")))
    rows = re.findall(r"^\| (.+) \| (.+ \(.+\)) \| (\w+) \| `?(.*?)`? ?\|$", README, re.MULTILINE)
    assert len(rows) == 5
    for way, held, fits, code in rows:
        (line,) = [each for each in printed.splitlines() if each.startswith(f"{way}  ")]
        assert f"  {held}  " in line and f" {fits}  " in line and line.rstrip().endswith(code)


def test_the_ten_lines_run_on_two_devices(plan):
    names = draw_readme.run(ROOT / "docs" / "package.md")
    layers = {row.name for row in names["step"].top(10, by="layer").rows}
    assert {"conv1", "conv2"} <= layers
    assert set(plan.devices) <= set(names["step"].devices)


def test_the_example_of_help_runs(plan):
    ran = doctest.testmod(mgpu_helpers)
    assert ran.attempted and not ran.failed


def test_every_room_and_command_has_its_row_and_what_is_called_is_there():
    rooms = re.search(r"\| room \|.+?\n\n", PACKAGE, re.DOTALL)[0]
    listed = {name for row in rooms.splitlines() for name in re.findall(r"`(\w+)`", row[:22])}
    assert listed == set(ROOMS)
    assert set(re.findall(r"^\| `mgpu (\w+)\b(?!\.)", PACKAGE, re.MULTILINE)) == set(COMMANDS)
    for room, name in re.findall(rf"\b({'|'.join(ROOMS)})\.([a-z]\w*)\(", PACKAGE):
        assert callable(getattr(importlib.import_module(f"mgpu_helpers.{room}"), name))
