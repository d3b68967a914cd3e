"""A training step laid out over devices, as the benchmarks of towers and of scaling time it."""

from __future__ import annotations

from mgpu_helpers import scaling, towers, trace
from mgpu_helpers.lessons import digits, networks


class Step:
    """A training step laid out over devices, with Adam, in a Session of its own."""

    def __init__(self, plan, network, setting: scaling.Setting, only_host=False, colocate=True):
        import tensorflow.compat.v1 as tf1

        split, on_host = setting.path == "split", setting.variables == "host" or only_host
        where = (plan.host,) if only_host else plan.devices[: setting.devices]
        home, self.devices = plan.host if on_host else where[0], (plan.host, *where)
        images, labels = digits.load(setting.global_batch_size)
        with tf1.Graph().as_default() as graph:
            with tf1.device(plan.host):
                x, y = (tf1.placeholder(each.dtype, each.shape) for each in (images, labels))
            made = self.in_two(network, where, colocate, x, y) if split else (
                self.in_towers(network, where, home, x, y)
            )  # fmt: skip
            with tf1.device(home):
                self.train = tf1.train.AdamOptimizer(1e-4).apply_gradients(list(made))
            init = tf1.global_variables_initializer()
        config = plan.session_config(devices=1 if split else len(where), soft_placement=True)
        self.session, self.feed = tf1.Session(graph=graph, config=config), {x: images, y: labels}
        self.session.run(init)

    @staticmethod
    def in_towers(network, where, home, x, y):
        import tensorflow.compat.v1 as tf1

        weights = networks.classic(network, device=home)

        def tower(x, y):
            read = networks.read(weights)
            loss = networks.loss(y, networks.logits(network, read, x))
            return tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)

        shards = towers.split((x, y), len(where))
        gradients = towers.run(tower, where, *zip(*shards, strict=True))
        return zip(towers.average(gradients, device=home), weights.values(), strict=True)

    @staticmethod
    def in_two(network, where, colocate, x, y):
        import tensorflow.compat.v1 as tf1

        stages = networks.stages(network, ["conv2"], where)
        for stage in stages:
            with tf1.device(stage.device):
                x = stage.function(stage.weights, x)
        with tf1.device(where[1]):
            loss = networks.loss(y, x)
        weights = [weight for stage in stages for weight in stage.weights.values()]
        with tf1.device(where[0]):
            gradients = tf1.gradients(loss, weights, colocate_gradients_with_ops=colocate)
        return zip(gradients, weights, strict=True)

    def __call__(self) -> None:
        self.session.run(self.train, self.feed)

    def held(self) -> int:
        """Give the bytes that the fullest device holds of one step."""
        _, step = trace.session_step(self.session, self.train, self.feed)
        return max(step.peak(device) for device in self.devices)
