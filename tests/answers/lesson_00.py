"""Answers to the exercises of lesson 00: right ones, and wrong ones with their hints."""

CELLS = ["def build():"]

RIGHT = {
    1: [
        """
def build_on_all():
    return fit.use(build(), plan)
""",
        """
def build_on_all():
    with fit.strategy(plan.devices).scope():
        model = build()
    return model
""",
    ],
    2: [
        """
def idle(step):
    some = [op for op in step.ops if op.type.find("Conv2D") >= 0]
    return [each for each in plan.devices if not any(op.device == each for op in some)]
""",
        """
def idle(step):
    left = {device: 0 for device in plan.devices}
    for op in step.ops:
        if "Conv" in op.type:
            left.pop(op.device, None)
    return tuple(left)
""",
        """
def idle(step):
    return {*plan.devices} - {op.device for op in step.ops if "Conv2D" in op.type}
""",
        """
def idle(step):
    worked = {op.device for op in step.ops if "Conv2D" in op.type}
    return [device for device in plan.devices[::-1] if device not in worked]
""",
    ],
}

WRONG = {
    1: [
        ("fit.strategy(plan)", "tf.distribute.MirroredStrategy(plan.devices)",
         "not those of one device"),
        ("fit.strategy(plan).scope()", "tf.device(plan.host)", "not every device"),
        ("build_on_all = build()\n", "not a model"),
        ("return build()", "build()", "return the model"),
        ("return build()", "return keras.Sequential([keras.Input([28, 28, 1])])", "it raises"),
        ("fit.strategy(plan)", "tf.distribute.MirroredStrategy()", "/CPU:0 computed convolutions"),
    ],
    2: [
        ("    return [", "    _ = [", "the function returns nothing"),
        ("plan.devices if", "(*plan.devices, *plan.devices) if", "names from plan.devices"),
    ],
}
