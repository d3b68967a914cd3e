"""The site's settings for Sphinx. `make site` builds it: see tools/build_site.py."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import mgpu_helpers
from build_site import ROOMS
from lessons import CLOSED, read
from mgpu_helpers import charts
from mgpu_helpers.lessons import compiled, drawings, workers

# The repository's address, such as https://github.com/name/mgpu: with it every lesson gets buttons
# that open it on Colab, Kaggle and Binder, and the start page has the line that clones it.
REPOSITORY = ""
BRANCH = "main"

project = html_title = "mgpu"
author = copyright = "the authors of mgpu"
release = version = mgpu_helpers.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. ", True
copybutton_selector = "div.highlight:not(.cell_output div) pre"
here = Path(__file__).parent
# `jobs.run` or `report = jobs.run(commands)` in a text, a row of the table of rooms, and the link
# into the reference that each becomes where it names something
_ROOMS = "|".join(ROOMS)
IN_A_ROOM = re.compile(rf"(?<!`)`((?:\w[\w, ]* = )?((?:{_ROOMS})(?:\.\w+)+)(?:\([^`<>\n]*)?)`")
ROW_OF_A_ROOM = re.compile(rf"^\| `(({_ROOMS}))`(?= \|)", flags=re.MULTILINE)
REFERENCE = r"{py:obj}`\1 <mgpu_helpers.\2>`"
PICTURE_OF_A_STEP = re.compile(r"!\[[^]]*\]\(traces/(\w+)\.png\)")
LESSON = re.compile(r"\b([Ll]esson) (\d\d)\b(?!\])")

# Lessons are shown as they are stored. Whoever changes one builds it: CONTRIBUTING.md.
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # no stored output needs it, and it would be fetched from elsewhere
nb_code_prompt_show, nb_code_prompt_hide = "Show the solution", "Hide the solution"
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # a lesson may begin with a small heading

smartquotes = False  # quotes stand around values that people copy
default_role = "py:obj"  # what stands in backticks in a docstring: a link where it names something
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

exclude_patterns = ["README.md", "notebooks/README.md"]  # for those who read the repository

# What people type who do not know our words for it, by the page that answers it; of the lessons,
# lessons.toml says it. The words of a phrase may stand anywhere in a question, and go on there.
ASKED = {
    "docs/errors": "out of memory, oom, resourceexhausted, gpu is not used, gpu not used, no gpu, "
    "gpu not found, gpu fails, nccl, error, strategy scope, merge_call, log message, i0000, onednn",
    "docs/first_ten_minutes_on_a_gpu": "gpu is not used, gpu not used, gpu fails, cudnn, new gpu",
    "docs/fit": "multi gpu, two gpus, all gpus, gradient accumulation",
    "docs/fit_tests": "tested, which test",
    "docs/layouts": "layout, split model, split network, model parallel, does not fit, too large",
    "docs/parts_of_layers": "tensor parallel, attention head, column, embedding",
    "docs/on_paper": "7b, 13b, 70b, billion parameters, how many gpu, a100, h100",
    "docs/calculator": "7b, 13b, 70b, how many gpu, how much memory, buy, which gpu, a100, h100",
    "docs/fine_tuning": "finetun, fine tun, finetun memory, fine tun memory, lora, gemma, 2b, int8",
    "docs/kaggle": "kaggle, colab, t4, pip install, wheel, without clone",
    "docs/compare": "torchrun, pytorch, jax, ray, accelerate, horovod, deepspeed, fsdp",
    "docs/slurm": "slurm, sbatch, srun, kubernetes, preempt",
    "docs/parameter_servers": "parameter server, asynchronous",
    "index": "license, licence",
    "docs/traces": "timeline, trace, what did my gpu do, what does my gpu do, gantt",
} | {f"notebooks/{each.name}": each.asked for each in read() if each.asked}

html_theme, templates_path = "furo", [str(here / "templates")]
html_static_path, html_css_files, html_js_files = [str(here / "site")], ["site.css"], []
html_js_files += [(None, {"body": f"const ASKED = {json.dumps(ASKED)}"}), "site.js"]
html_theme_options = {
    f"{mode}_css_variables": {"code-font-size": "76%"} for mode in ("light", "dark")
}
html_favicon = str(here / "site" / "icon.svg")
html_use_index = html_domain_indices = False
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"


def buttons(name: str) -> str:
    """Write where the notebook of a page is, and where else it opens."""
    line = "This page is a notebook, shown with the outputs that are stored in it. "
    line += f"{{download}}`Download it <{name}.ipynb>`, and "
    line += "[the wheel that it needs](/index.md#get-it)."
    if not REPOSITORY:
        return line
    place, folder = urlsplit(REPOSITORY).path.strip("/"), REPOSITORY.rpartition("/")[2]
    path = f"{BRANCH}/notebooks/{name}.ipynb"
    colab = f"https://colab.research.google.com/github/{place}/blob/{path}"
    kaggle = f"https://kaggle.com/kernels/welcome?src={REPOSITORY}/blob/{path}"
    binder = f"https://mybinder.org/v2/gh/{place}/{path.replace('/', '?labpath=', 1)}"
    return (
        f"{line} It opens in [Colab]({colab}), [Kaggle]({kaggle}) and [Binder]({binder}).\n\n"
        "<details><summary>What Colab and Kaggle need first</summary>\n\n"
        "They open the notebook alone. On Kaggle switch the internet on, and choose two GPUs, in "
        "its settings. Put this into a cell above the others and run it:\n\n"
        f"```ipython\n!git clone -q --depth 1 {REPOSITORY}\n%pip install -q ./{folder}\n"
        f"%cd {folder}/notebooks\n```\n\n</details>"
    )


def drawn(code: str) -> str:
    """Say what a cell draws: what its chart says of itself, or the picture's title."""
    rooms = {"charts": charts, "compiled": compiled, "drawings": drawings, "workers": workers}
    for call in ast.walk(ast.parse(code)):
        if isinstance(call, ast.Call):
            room, _, name = ast.unparse(call.func).rpartition(".")
            about = inspect.getdoc(getattr(rooms.get(room), name, None)) or ""
            verb, _, what = about.split("\n")[0].partition(" ")
            if verb == "Draw" and name != "panel":
                return f"Chart: {what}".replace("`", "")
    title = re.search(r'set_title\("([^"]+)"', code)
    return f"Chart: {title[1]}." if title else ""


def in_words(text: str) -> str:
    """Link what a text names, and put what it says of a picture on one line."""
    text = re.sub(r"!\[[^]]*\]", lambda found: found[0].replace("\n", " "), text)
    text = re.sub(r"\(\.\./results/(\w+)\.json\)", r"(/results.md#\1)", text)
    text = re.sub(r"`scripts/([\w.]+)`", r"[\1](scripts/\1)", text)
    text = re.sub(r"\((?:\.\./notebooks/)?scripts/([\w.]+)\)", r"(/notebooks/scripts/\1.rst)", text)
    text = LESSON.sub(lambda found: f"[{found[0]}](/notebooks/{lesson(found[2])}.ipynb)", text)
    if REPOSITORY:
        text = text.replace("clone the project", f"clone [the project]({REPOSITORY})")
        text = text.replace("% git clone", f"```\ngit clone {REPOSITORY}\n```")
    return IN_A_ROOM.sub(REFERENCE, text)


def with_numbers(found: re.Match) -> str:
    """Put below the picture of a step what site/traces.js draws in its place."""
    numbers = (here / "traces" / f"{found[1]}.json").read_text(encoding="utf-8")
    return f'{found[0]}\n\n<script class="trace" type="application/json">{numbers}</script>'


def prepare(app, docname: str, source: list[str]) -> None:
    """Close the solutions of a lesson, describe its pictures in words, and add its buttons."""
    if app.env.doc2path(docname).suffix == ".rst":  # what build_site writes needs nothing
        return
    if not docname.startswith("notebooks/"):
        # GitHub's way to name a place, in MyST's
        source[0] = re.sub(r'^<a id="(\w+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)
        source[0] = in_words(source[0])
        if docname == "docs/traces":
            source[0] = PICTURE_OF_A_STEP.sub(with_numbers, source[0])
        if docname == "docs/package":
            source[0] = ROW_OF_A_ROOM.sub(f"| {REFERENCE}", source[0])
        return
    notebook = json.loads(source[0])
    # What closes a solution in JupyterLab is a heading, and on this page its own button.
    cells = [cell for cell in notebook["cells"] if cell["metadata"] != CLOSED]
    name = docname.rpartition("/")[2]
    opening = "".join(cells[0]["source"]).removeprefix("# ")
    cells[0]["source"] = f"# {name[:2]} {opening}\n\n{buttons(name)}"
    for cell in cells:
        text = "".join(cell["source"])
        if "solution" in (tags := cell["metadata"].get("tags", [])):
            cell["metadata"]["tags"] = [*tags, "hide-cell"]
        if cell["cell_type"] == "markdown":
            cell["source"] = in_words(text)
        elif any("image/png" in output.get("data", {}) for output in cell["outputs"]):
            cell["metadata"]["mystnb"] = {"image": {"alt": drawn(text)}}
    # JupyterLab's words for what is closed, in this page's
    notebook["cells"] = cells
    source[0] = json.dumps(notebook).replace("*1 cell hidden*", f"*{nb_code_prompt_show}*")


def as_rst(app, what, name, obj, options, lines: list[str]) -> None:
    """Make a docstring reStructuredText: what is indented is code, and a star is a star."""
    paragraphs = "\n".join(lines).split("\n\n")
    for i, text in enumerate(paragraphs):
        if text.startswith("    "):
            paragraphs[i] = f"::\n\n{text}"
        elif not text.startswith(">>>"):
            parts = re.split(r"(`[^`]*`)", text)
            parts[1::2] = [IN_A_ROOM.sub(r"`\1 <mgpu_helpers.\2>`", name) for name in parts[1::2]]
            parts[::2] = [re.sub(r"([*|@\\]|(?<=\w)_\b)", r"\\\1", words) for words in parts[::2]]
            parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", words) for words in parts[2::2]]
            paragraphs[i] = LESSON.sub(link_lesson, "".join(parts))
    lines[:] = "\n\n".join(paragraphs).split("\n")


def link_lesson(found: re.Match) -> str:
    return f":doc:`{found[0]} </notebooks/{lesson(found[2])}>`"


def lesson(number: str) -> str:
    (path,) = (here.parent / "notebooks").glob(f"{number}_*.ipynb")
    return path.stem


def as_signature(app, what, name, obj, options, signature, returns) -> tuple[str, str] | None:
    """Write a default that is made anew as "...": with `<factory>` no signature can be read."""
    return signature and (signature.replace("<factory>", "..."), returns)


def name_places(app, doctree) -> None:
    """Let links find places that a page names in HTML, as the rows of a table."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for node in doctree.findall(lambda node: node.tagname == "raw"):
        for place in re.findall(r'<a id="([\w-]+)"', node.astext()):
            slugs[place] = (0, place, "")


def describe(app, pagename, templatename, context, doctree) -> None:
    """Give search engines the first paragraph of a page."""
    first = doctree and next(doctree.findall(lambda node: node.tagname == "paragraph"), None)
    if first:
        text = app.builder.templates.environment.filters["e"](first.astext().replace("\n", " "))
        context["metatags"] += f'<meta name="description" content="{text}">'


def setup(app) -> None:
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("autodoc-process-signature", as_signature)
    app.connect("doctree-read", name_places)
    app.connect("html-page-context", describe)
