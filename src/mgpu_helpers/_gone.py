"""Names of earlier versions, each with the line that does the same now: for one release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

GONE = {
    "mgpu_helpers.ensemble": {
        "predictions": "list(pool.map(lambda member: member.predict(images), members)) in a block "
                       "`with ThreadPoolExecutor() as pool`",
        "mean": "numpy.mean(predictions, axis=0).argmax(1)",
        "vote": "scipy.stats.mode(numpy.argmax(predictions, axis=2)).mode",
    },
    "mgpu_helpers.fit": {
        "parallel": "fit.use(model, plan)", "accumulate": "fit.use(model, pieces=4)",
        "recompute": "fit.use(model, recompute=True)",
        "shard": 'fit.use(model, plan, state="owners")',
        "split": "fit.use(model, plan, stages=2)",
        "split_layers": 'fit.use(model, plan, layers={"up": "columns", "down": "rows"})',
    },
    "mgpu_helpers.pipeline": dict.fromkeys(
        ("Stage", "gradients", "stages", "updater"), "fit.use(model, plan, stages=2, pieces=4)"
    ),
    "mgpu_helpers.scaling": {"Layout": "scaling.Setting(4, 128)"},
    "mgpu_helpers.towers": {
        "train_step": "fit.use(model, plan), and model.train_on_batch(x, y)",
    },
    "mgpu_helpers.whatif": {"scaled": "whatif.towers(step, 1, batch=0.5)"},
}  # fmt: skip


def gone(module: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module, by which what is gone raises the new line for it."""

    def look(name: str) -> Any:
        if (line := GONE[module].get(name)) is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")

        def raises(*_: Any, **__: Any) -> None:
            raise AttributeError(f"{module.rpartition('.')[2]}.{name} is gone: write {line}.")

        return raises

    return look
