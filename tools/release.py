"""Build wheel and sdist and check them as a release does: ``python tools/release.py``.

The wheel is built from the sdist, so the sdist has all that it takes; it holds nothing that git
does not track. The wheel is installed into an empty environment and used in another folder: the
digits are read, a step is traced and drawn, the command copies the lessons.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import mgpu_helpers

ROOT = Path(__file__).resolve().parent.parent
MOST = 5e6  # bytes of either file
USE = """
import sys
from pathlib import Path
import matplotlib; matplotlib.use("agg")
import mgpu_helpers
assert Path(mgpu_helpers.__file__).is_relative_to(sys.prefix), mgpu_helpers.__file__
from mgpu_helpers import charts, devices, trace
from mgpu_helpers.lessons import digits
import tensorflow as tf
print(devices.setup(2))
images, labels = digits.load(64)
_, step = trace.function_step(lambda x: tf.reduce_mean(x, 0), images)
charts.timeline(step).figure.savefig("timeline.png")
assert images.shape == (64, 28, 28, 1) and Path("timeline.png").stat().st_size > 5000
"""


class ReleaseError(Exception):
    """What keeps a wheel from being released; the message is for the person who releases it."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist and, from it, the wheel, in place of others there; return both."""
    for old in (*folder.glob("*.tar.gz"), *folder.glob("*.whl")):  # or they would be published too
        old.unlink()
    call([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    call([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    return sdist, wheel


def contents(sdist: Path, wheel: Path) -> dict[Path, list[str]]:
    """List the files in both; refuse an sdist with what git does not track, and what is huge."""
    with tarfile.open(sdist) as packed:
        ours = [name.partition("/")[2] for name in packed.getnames()]
    tracked = call(["git", "ls-files"], cwd=ROOT).split("\n")
    if strange := sorted(set(ours) - {*tracked, "PKG-INFO"}):
        raise ReleaseError(f"{sdist.name} has {strange[0]}, which git does not track.")
    for file in (sdist, wheel):
        if file.stat().st_size > MOST:
            size = f"{file.stat().st_size / 1e6:.1f} MB, more than {MOST / 1e6:.0f}"
            raise ReleaseError(f"{file.name} has {size}: leave something out in pyproject.toml.")
    return {sdist: ours, wheel: zipfile.ZipFile(wheel).namelist()}


def use(wheel: Path, folder: Path, *, borrow: bool) -> None:
    """Install the wheel into an empty environment in a folder, and use it there."""
    venv.create(folder / "env", with_pip=True)
    scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    install = [str(scripts / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
    if borrow:
        site = next((folder / "env").rglob("site-packages"))
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (site / "borrowed.pth").write_text("\n".join(ours))
        install[-1:] = ["--no-deps", "--no-index", str(wheel)]
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    call(install, cwd=elsewhere)
    print(call([str(scripts / "python"), "-I", "-c", USE], cwd=elsewhere), end="")
    print(call([str(scripts / "mgpu"), "lessons", "lessons"], cwd=elsewhere), end="")


def call(command: Sequence[str], **settings) -> str:
    """Run a command without this project on its path; return what it printed."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, **settings)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise ReleaseError(f"{' '.join(command)[:200]} fails:\n{said}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tag", help="refuse where it is not v and the version, as v0.1.0")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where to; default: dist")
    parser.add_argument("--borrow", action="store_true", help="take TensorFlow and the other "
                        "dependencies of this Python; default: install them")  # fmt: skip
    options = parser.parse_args(arguments)
    wanted = f"v{mgpu_helpers.__version__}"
    try:
        if options.tag not in (None, wanted):
            raise ReleaseError(
                f"The tag {options.tag} is not {wanted}, the version in "
                "src/mgpu_helpers/__init__.py: change one of them."
            )
        sdist, wheel = build(options.out)
        for file, names in contents(sdist, wheel).items():
            print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, {len(names)} files")
        with tempfile.TemporaryDirectory() as folder:
            use(wheel, Path(folder), borrow=options.borrow)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
