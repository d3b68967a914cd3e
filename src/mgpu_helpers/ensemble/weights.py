"""The variables of members on disk, one file for each member."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from mgpu_helpers.ensemble.members import Member, checked
from mgpu_helpers.files import replacing
from mgpu_helpers.wording import error_line


def save(members: Iterable[Member], folder: str | Path) -> list[Path]:
    """Write each member's variables into a file of its own, name.npz; give the files.

    A file that is there is replaced when the new one is whole. What is not a variable is not saved:
    a stateful random generator of a graph, for example, starts again.

    >>> from mgpu_helpers.ensemble import from_functions
    >>> save([from_functions("small", None, None, [tf.Variable(1.0, name="w")])], "checkpoints")
    [PosixPath('checkpoints/small.npz')]
    """
    members, folder = checked(members), Path(folder)
    values = [m.session.run(dict(m.variables)) if m.session else _numpy(m) for m in members]
    folder.mkdir(parents=True, exist_ok=True)
    files = [_file(folder, member) for member in members]
    for file, held in zip(files, values, strict=True):
        with replacing(file) as out:
            np.savez(out, **held)
    return files


def resume(members: Iterable[Member], folder: str | Path) -> None:
    """Give each member the variables that `save` wrote, once all of them are found to fit.

    A file that is missing, broken or of another model raises an error, and no variable changes. A
    Keras model that was built again in the same process has other numbers in its names: dense_2 for
    dense. Where names differ in such numbers alone, and stand in one order, they are the same.
    Nothing is built, so a finalized graph resumes too.

    >>> from mgpu_helpers.ensemble import from_functions
    >>> w = tf.Variable(1.0, name="w")
    >>> small = from_functions("small", None, None, [w])
    >>> files, later = save([small], "kept"), w.assign(5.0)
    >>> resume([small], "kept")
    >>> float(w)
    1.0
    """
    members = checked(members)
    held = [_loaded(_file(Path(folder), member), member) for member in members]
    for member, values in zip(members, held, strict=True):
        for name, variable in member.variables.items():
            if member.session:  # one a run: two variables may start from one tensor
                initial = variable.initializer.inputs[1]
                member.session.run(variable.initializer, {initial: values[name]})
            else:
                variable.assign(values[name])


def _file(folder: Path, member: Member) -> Path:
    return folder / f"{quote(member.name, safe=' ')}.npz"


def _numpy(member: Member) -> dict[str, np.ndarray]:
    return {name: np.asarray(variable) for name, variable in member.variables.items()}


def _loaded(file: Path, member: Member) -> dict[str, np.ndarray]:
    """Read a file of `save`, and check that it fits the member."""
    if not file.exists():
        raise FileNotFoundError(
            f"{member.name} has no {file.name} in {file.parent}: save it first."
        )
    try:
        with np.load(file) as saved:
            held = dict(saved)
    except Exception as error:  # a zip file breaks in many ways
        raise ValueError(
            f"{file} is not a whole file of save() ({error_line(error)}): save {member.name} again."
        ) from error
    wanted = {name: _kind(variable) for name, variable in member.variables.items()}
    if held.keys() != wanted.keys() and _counted_anew(held) == _counted_anew(wanted):
        held = dict(zip(wanted, held.values(), strict=True))
    lacks, more = sorted(wanted.keys() - held.keys()), sorted(held.keys() - wanted.keys())
    apart = [f"lacks {', '.join(lacks[:3])}"] if lacks else []
    apart += [f"has also {', '.join(more[:3])}"] if more else []
    apart += [
        f"has {name} as {_kind(value)} instead of {wanted[name]}"
        for name, value in held.items()
        if _kind(value) != wanted.get(name, _kind(value))
    ]
    if apart:
        raise ValueError(
            f"{file.name} does not fit {member.name}: it {' and '.join(apart[:2])}. Resume "
            "the model that was saved."
        )
    return held


def _counted_anew(names: Iterable[str]) -> list[str]:
    """Rewrite names as if each kind of layer were counted from 0: dense_3/bias as dense_0/bias.

    An optimizer joins the names of the variables that it follows: adam_1/dense_3_bias_momentum.
    """
    paths = [name.split("/") for name in names]
    lowest: dict[str, int] = {}
    for kind, number in map(_numbered, itertools.chain(*paths)):
        lowest[kind] = min(number, lowest.get(kind, number))

    def anew(part: str) -> str:
        followed = [name for name in joined if part.startswith(f"{name}_")]
        if followed:
            name = max(followed, key=len)
            return joined[name] + part.removeprefix(name)
        kind, number = _numbered(part)
        return f"{kind}_{number - lowest[kind]}"

    joined: dict[str, str] = {}
    joined |= {"_".join(path): "_".join(map(anew, path)) for path in paths if len(path) > 1}
    return ["/".join(map(anew, path)) for path in paths]


def _numbered(part: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.+)_(\d+)", part)
    return (found[1], int(found[2])) if found else (part, 0)


def _kind(x: Any) -> str:
    """Write the type and shape of an array or a variable: "float32 (3, 2)"."""
    return f"{np.dtype(getattr(x.dtype, 'as_numpy_dtype', x.dtype)).name} {tuple(x.shape)}"
