"""Answers to the exercises of lesson 01: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def evaluate(strategy, losses_of, data):
    with strategy.scope():
        mean = keras.metrics.Mean()
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(lambda x: mean.update_state(losses_of(x)), args=(batch,))
    return mean.result()
"""],
    2: ["""
def leaves_empty(examples, batch, replicas):
    sizes = [batch] * (examples // batch) + [examples % batch] * (examples % batch > 0)
    return any(size <= (replicas - 1) * np.ceil(size / replicas) for size in sizes)
"""],
}

EACH = "np.concatenate([strategy.gather(each, axis=0) for each in losses])"

WRONG = {
    1: [
        (EACH, "[part.numpy().mean() for each in losses "
         "for part in strategy.experimental_local_results(each)]", "is not a number"),
        ("np.mean", "np.sum", "divide by the number of examples"),
        (EACH, "[np.concatenate(strategy.experimental_local_results(each)).mean() "
         "for each in losses]", "counts as much as the others"),
        (f"np.mean({EACH})", "np.average([np.mean([part.numpy().mean() for part in "
         "strategy.experimental_local_results(each) if len(part)]) for each in losses], "
         "weights=[len(batch) for batch in data])", "a replica with fewer examples"),
        ("(data)", "(data.unbatch().batch(2 * len(plan), drop_remainder=True))", "left out"),
        ("strategy.run(losses_of, args=(batch,))", "losses_of(batch)", "in batches]", "in data]",
         EACH, "np.concatenate(losses)", "strategy.run"),
        ("strategy.experimental_distribute_dataset(data)", "data",
         EACH, "np.concatenate([strategy.experimental_local_results(each)[0] for each in losses])",
         "a replica computed"),
        ("strategy.experimental_distribute_dataset(data)", "data", f"np.mean({EACH})",
         "sum(strategy.reduce('SUM', each, axis=0) for each in losses) "
         "/ sum(len(batch) for batch in data)", "not all of the batch"),
        (f"np.mean({EACH})", "sum(strategy.reduce('SUM', each, axis=0) for each in losses) "
         "/ (len(next(iter(data))) * len(losses))", "has fewer examples"),
    ],
    2: [
        ("leaves_empty = lambda examples, batch, replicas: examples % batch % replicas > 0",
         "should be False"),
        ("{min(batch, examples), examples % batch}", "{examples % batch}", "first"),
        (">= size", "> size", "should be True"),
        ("leaves_empty = lambda examples, batch, replicas: (lambda last: "
         "-(-last // replicas) * (replicas - 1) >= last)(examples % batch or batch)", "first"),
        ("leaves_empty = lambda examples, batch, replicas: "
         "min(batch, examples, examples % batch or batch) < replicas", "should be True"),
    ],
}
