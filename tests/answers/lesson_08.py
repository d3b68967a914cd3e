"""Answers to the exercises of lesson 08: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
@tf.function
def word_loss(losses, is_word):
    weights = tf.cast(is_word, tf.float32)
    weights /= tf.maximum(tf.reduce_sum(weights), 1.0)
    return tf.tensordot(losses, weights, 2)
"""],
    2: ["""
def sizes(examples, batch, devices):
    last = examples % batch
    whole = [batch] if examples >= batch else []
    found = {(n + i) // devices for n in whole + [last] * (last > 0) for i in range(devices)}
    return len(found)
"""],
}

WRONG = {
    1: [
        ("tf.reduce_sum(counts), 1)", "tf.cast(tf.size(losses), losses.dtype), 1)",
         "not of all places"),
        (" / tf.maximum(tf.reduce_sum(counts), 1)", "", "divide by the number of words"),
        ("tf.maximum(tf.reduce_sum(counts), 1)", "tf.reduce_sum(counts)", "do not divide by 0"),
        ("tf.cast(is_word", "tf.cast(~is_word", "that do not count"),
        ("losses * counts", "tf.stop_gradient(losses) * counts", "its gradient is not"),
        ("tf.reduce_sum(losses * counts)",
         "tf.numpy_function(lambda a: a.sum(), [losses * counts], losses.dtype)", "no PyFunc"),
        ("word_loss = lambda losses, is_word: tf.reduce_mean(losses)", "does not count"),
    ],
}
