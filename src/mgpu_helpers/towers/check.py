"""Say before a training what its batches do to the replicas of MirroredStrategy."""

from __future__ import annotations

from mgpu_helpers.wording import counted, whole_number


def replica_sizes(batch: int, replicas: int) -> list[int]:
    """Give the number of examples of a global batch that MirroredStrategy hands to each replica.

    Each takes the share that would be even, rounded up, until nothing is left. (`shares` and
    `split` of the towers differ by one example at most.)

    >>> replica_sizes(5, 4)
    [2, 2, 1, 0]
    """
    share = -(-batch // replicas)
    return [max(0, min(share, batch - share * i)) for i in range(replicas)]


def check_batches(examples: int, batch: int, replicas: int) -> None:
    """Raise ValueError unless every batch divides: what lesson 08 asks before it trains.

    `examples` in global batches of `batch` leave a last one, which may be smaller. `model.fit`
    under MirroredStrategy refuses a first batch that does not divide, and goes on silently with a
    last one.

    >>> check_batches(1000, 8, 4)
    >>> check_batches(1005, 8, 4)
    Traceback (most recent call last):
        ...
    ValueError: the last batch has 5 of 1,005 examples, of which 4 replicas get 2, 2, 1, 0: ...
    """
    examples = whole_number("examples", examples, "a number of examples", 1)
    batch = whole_number("batch", batch, "the size of a global batch", 1)
    replicas = whole_number("replicas", replicas, "a number of replicas", 1)
    over, last = counted(replicas, "replica"), examples % batch
    if batch % replicas:
        low = batch - batch % replicas
        use = f"{low} or {low + replicas}" if low else f"{replicas}"
        raise ValueError(
            f"a batch of {batch} does not divide over {over}, which would get "
            f"{_listed(batch, replicas)}: use {use}."
        )
    if last % replicas:
        if 0 in replica_sizes(last, replicas):
            harm = "one without examples counts as 0, and turns a BatchNormalization into NaN"
        else:
            harm = "their means count alike, so an example of a smaller share counts more"
        raise ValueError(
            f"the last batch has {last} of {examples:,} examples, of which {over} get "
            f"{_listed(last, replicas)}: {harm}; leave it out with drop_remainder=True, or pad it "
            f"to {last + -last % replicas} or more with examples of weight 0."
        )


def _listed(batch: int, replicas: int) -> str:
    return ", ".join(map(str, replica_sizes(batch, replicas)))
