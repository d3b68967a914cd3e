"""Build the site: ``python tools/build_site.py [FOLDER]``, by default build/site.

Gathers what the site shows in build/site-source, in the same folders as here, so that links hold:
the notebooks as they are stored, docs/, the scripts. Writes the pages that no person writes: the
API reference, the result cards, the code of the scripts. Then runs Sphinx with docs/conf.py; a
warning is an error.
"""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from lessons import BENCHMARKS, NOTEBOOKS, ROOT, by_part, read
from mgpu_helpers._formatting import counted

sys.path.append(str(BENCHMARKS))
import _cards  # noqa: E402

SOURCE = ROOT / "build" / "site-source"
ROOMS = (  # in the order of docs/package.md
    "devices", "trace", "timing", "graph", "memory", "fit", "towers", "pipeline", "ensemble",
    "jobs", "cluster", "scaling", "whatif", "charts", "nvml",
)  # fmt: skip
TITLES = {"function": "Functions", "class": "Classes", "data": "Values"}
API = """# Reference

`mgpu_helpers` is what the lessons build, for your own notebooks. It has a module for each purpose,
called a room: `from mgpu_helpers import charts, devices, trace`. Importing one loads what it needs
and no more. The examples on these pages are run by the tests. In them `np` is NumPy, `tf` is
TensorFlow, `plan` is `devices.setup(2)`, and the names of a page's room are imported.
"""
RESULTS = """# Result cards

What the benchmarks of this project found, on the machine that each card names.
[Benchmarks and result cards](docs/benchmarks.md) says what each ratio means, and how to measure
your own machine.

![A row for each ratio with a target, and a marker for each machine, in parts of the
target](results/bench.png)
"""


def gather(source: Path) -> None:
    """Copy what is shown as it is, and what it links to."""
    shutil.rmtree(source, ignore_errors=True)
    skip = shutil.ignore_patterns("source", "*.jsonl", ".*", "__pycache__", "site", "templates",
                                  "conf.py")  # fmt: skip
    for folder in ("notebooks", "docs", "results"):
        shutil.copytree(ROOT / folder, source / folder, ignore=skip)
    start = (source / "docs" / "index.md").rename(source / "index.md")
    text = start.read_text(encoding="utf-8").replace("[[lessons]]", "\n".join(series()))
    wheel = source / "wheel"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheel)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    text = text.replace("[[wheel]]", offer(next(wheel.iterdir())))
    start.write_text(text, encoding="utf-8")
    for name in ("CHANGELOG.md", "README.md"):  # of the README the start page shows a part
        shutil.copy(ROOT / name, source)
    # A changelog has every word that somebody might look for, and answers none of the questions.
    changes = source / "CHANGELOG.md"
    changes.write_text("---\nnosearch: true\n---\n" + changes.read_text("utf-8"), "utf-8")


def offer(wheel: Path) -> str:
    """Give the start page's lines about the wheel of this version, which stands beside it."""
    data, name = wheel.read_bytes(), wheel.name
    return (
        f"{{download}}`{name} </wheel/{name}>` has {len(data) / 1e6:.1f} MB. Its sha256 is "
        f"`{hashlib.sha256(data).hexdigest()}`.\n\n```\npip install {name}\n```"
    )


def series() -> Iterator[str]:
    """Give the start page's lines about each part of the series, which lead to its lessons."""
    for part, lessons in by_part(read()):
        first = lessons[0]
        yield f"### {part.capitalize()}\n\n![{first.picture}](/docs/{first.cover.name})\n"
        yield from (f"- [](/notebooks/{each.notebook.name}): {each.what}." for each in lessons)
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {part.capitalize()}\n"
        yield from (f"/notebooks/{each.name}" for each in lessons)
        yield "```\n"


def charts_drawn() -> Iterator[tuple[str, str, str, bytes]]:
    """Give each call of a chart on a page: its name, the page, the line, and its picture."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            pictures = [
                output.data["image/png"]
                for output in cell.get("outputs", [])
                if "image/png" in output.get("data", {})
            ]
            for node in ast.walk(ast.parse(cell.source)) if pictures else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("charts."):
                    name = ast.unparse(node.func).removeprefix("charts.")
                    picture = base64.b64decode(pictures[-1])
                    yield name, f"/notebooks/{path.stem}", ast.unparse(node), picture
    ten_lines = (ROOT / "docs" / "ten_lines.png").read_bytes()
    yield "timeline", "/docs/package", 'charts.timeline(step, by="layer")', ten_lines


def public(room: str) -> dict[str, Any]:
    """Give what a room offers: what its ``__all__`` names, or what it defines without a _.

    What the lessons and the pages of docs/ call most stands first.
    """
    module = importlib.import_module(f"mgpu_helpers.{room}")
    own = [name for name, value in vars(module).items() if _home(value) == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    said = re.findall(rf"\b{room}\.(\w+)", _texts())
    by_use = sorted(names, key=lambda name: (-said.count(name), name.lower()))
    return {name: getattr(module, name) for name in by_use}


@functools.cache
def _texts() -> str:
    lessons = (NOTEBOOKS / "source").glob("*.py")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *lessons]
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(pages))


def _home(value: Any) -> str | None:
    return getattr(value, "__module__", None)


def _kind(value: Any) -> str:
    if inspect.isclass(value) and not hasattr(value, "__origin__"):  # list[str] is no class
        return "class"
    return "function" if inspect.isfunction(inspect.unwrap(value)) else "data"


def said(room: str, name: str) -> str:
    """Return what the comment that begins with #: says of a value, in the file that defines it."""
    from sphinx.pycode import ModuleAnalyzer

    for file in [each for each in sys.modules if each.startswith(f"{room}.")]:
        if found := ModuleAnalyzer.for_module(file).find_attr_docs().get(("", name)):
            return " ".join(found).strip()
    raise ValueError(f"{room}.{name} has no comment: write a line that begins with #: above it.")


def write_room(room: str, folder: Path, drawn: dict[str, tuple[str, str, bytes]]) -> None:
    """Write the page of a room, with pictures that its charts have drawn."""
    name = f"mgpu_helpers.{room}"
    lines = [room, "=" * len(room), "", f".. automodule:: {name}", ""]
    lines += [f".. currentmodule:: {name}", ""]
    for kind, title in TITLES.items():
        offered = {each: value for each, value in public(room).items() if _kind(value) == kind}
        if offered:
            lines += [title, "-" * len(title), ""]
        for each, value in offered.items():
            if kind == "data":
                lines += [f".. data:: {each}", f"   :value: {value!r}", ""]
                lines += [f"   {said(name, each)}", ""]
                continue
            lines += [f".. auto{kind}:: {each}"] + ["   :members:"] * (kind == "class") + [""]
            if room == "charts" and each in drawn and draws(value):
                page, call, picture = drawn[each]
                (folder / f"{each}.png").write_bytes(picture)
                lines += [
                    f"   What ``{call}`` draws in :doc:`{page}`:", "",
                    f"   .. image:: {each}.png",
                    f"      :alt: {inspect.getdoc(value).splitlines()[0].replace('`', '')}", "",
                ]  # fmt: skip
    (folder / f"{room}.rst").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draws(value: Any) -> bool:
    """Tell a chart, which takes data and axes, from `axes` itself and from what draws nothing."""
    return "ax" in list(inspect.signature(value).parameters)[1:]


def import_types() -> None:
    """Give every module the names that it imports for types only: signatures then link to them."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("mgpu_helpers."):
            for node in ast.parse(inspect.getsource(module)).body:
                if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                    exec(compile(ast.Module(node.body, []), name, "exec"), vars(module))


def write_api(folder: Path) -> None:
    """Write a page for each room, and one that lists them."""
    folder.mkdir()
    drawn: dict[str, tuple[str, str, bytes]] = {}
    for name, *rest in charts_drawn():
        drawn.setdefault(name, tuple(rest))
    rows = []
    for room in ROOMS:
        write_room(room, folder, drawn)
        about = inspect.getdoc(importlib.import_module(f"mgpu_helpers.{room}")).splitlines()[0]
        rows.append(f"| [{room}]({room}.rst) | {about} |")
    import_types()
    tree = ["```{toctree}", ":hidden:", "", *ROOMS, "```", ""]
    text = [API, "| room | what it is |", "|---|---|", *rows, "", *tree]
    (folder / "index.md").write_text("\n".join(text), encoding="utf-8")


def write_results(path: Path) -> None:
    """Write the result cards as tables, a part for each benchmark."""
    text = RESULTS
    for file in sorted((ROOT / "results").glob("*.json")):
        card = _cards.read(file)
        about = [card.where, counted(card.devices, "device"), card.date]
        about += [f"{name} {version}" for name, version in card.versions.items()]
        text += f"\n## {card.name}\n\n{', '.join(about)}. "
        text += f"The whole card: [{file.name}](results/{file.name}).\n"
        if card.ratios:
            text += "\n| what | ratio | middle half | target | |\n|---|---|---|---|---|\n"
            text += "".join(f"| {' | '.join(ratio.cells())} |\n" for ratio in card.ratios)
    path.write_text(text, encoding="utf-8")


def write_scripts(folder: Path) -> None:
    """Write a page for each script beside the notebooks, which shows its code."""
    for name in sorted(file.name for file in folder.iterdir() if file.is_file()):
        language = {".py": "python", ".yaml": "yaml"}.get(Path(name).suffix, "bash")
        lines = [":orphan:", "", name, "=" * len(name), ""]
        lines += [f"A script of ``notebooks/scripts``. :download:`Download it <{name}>`.", ""]
        lines += [f".. literalinclude:: {name}", f"   :language: {language}"]
        (folder / f"{name}.rst").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_redirects(folder: Path) -> None:
    """Let the address that a lesson had before it was renamed lead to it."""
    for lesson in read():
        if lesson.was:
            to = f"{lesson.name}.html"
            (folder / f"{lesson.was}.html").write_text(
                '<!doctype html><html lang="en"><meta charset="utf-8">'
                f"<title>{lesson.title}</title>"
                f'<meta http-equiv="refresh" content="0; url={to}">'
                f'<link rel="canonical" href="{to}"><a href="{to}">{lesson.title}</a></html>\n',
                encoding="utf-8",
            )


def main(arguments: list[str]) -> int:
    """Gather, write, and run Sphinx; return its exit status."""
    from sphinx.cmd.build import main as sphinx

    site = Path(arguments[0] if arguments else ROOT / "build" / "site")
    gather(SOURCE)
    write_api(SOURCE / "api")
    write_results(SOURCE / "results.md")
    write_scripts(SOURCE / "notebooks" / "scripts")
    shutil.rmtree(site, ignore_errors=True)
    options = ["-E", "-W", "--keep-going", "-q", "-d", str(SOURCE.parent / "site-doctrees")]
    status = sphinx([*options, "-c", str(ROOT / "docs"), str(SOURCE), str(site)])
    if not status:
        write_redirects(site / "notebooks")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
