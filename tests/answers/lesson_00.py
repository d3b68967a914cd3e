"""Answers to the exercises of lesson 00: right ones, and wrong ones with their hints."""

CELLS = ["def build():"]

RIGHT = {
    1: ["""
def build_on_all():
    return fit.use(build(), plan)
"""],
    2: ["""
def idle(step):
    return {*plan.devices} - {op.device for op in step.ops if "Conv2D" in op.type}
"""],
}

WRONG = {
    1: [
        ("fit.strategy(plan)", "tf.distribute.MirroredStrategy(plan.devices)",
         "not those of one device"),
        ("fit.strategy(plan).scope()", "tf.device(plan.host)", "not every device"),
        ("build_on_all = build()\n", "not a model"),
        ("return build()", "build()", "return the model"),
        ("fit.strategy(plan)", "tf.distribute.MirroredStrategy()", "/CPU:0 computed convolutions"),
    ],
    2: [("plan.devices if", "(*plan.devices, *plan.devices) if", "names from plan.devices")],
}
