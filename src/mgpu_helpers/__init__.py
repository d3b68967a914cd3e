"""Use several GPUs from TensorFlow: place work, trace it, measure it, chart it and share it out.

Each module below is a room with one subject. Import the rooms that you need; TensorFlow is imported
by what runs it. Without a GPU a core of the processor stands in for each device:

    >>> import keras, numpy
    >>> from mgpu_helpers import charts, devices, trace
    >>> plan = devices.setup(2)            # a host and two devices; once, before TensorFlow starts
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> data = numpy.ones((64, 8)), numpy.ones((64, 1))
    >>> step = trace.fit_step(model, data)       # one step of what model.fit(*data) runs
    >>> busiest = step.top(10, by="layer")       # the layers that took the most time
    >>> ax = charts.timeline(step, by="layer")   # when each device worked

What to call, and `help(room)` says more:

    to see what is there
        devices.setup(n), devices.adopt()   a host and n devices on 0, 1 or N GPUs; adopt takes
                                            those of a TensorFlow that has started
        devices.explain(error)              what an error of several devices means
        nvml.query()                        the GPUs as NVIDIA's driver reports them
    to see what a step does
        trace.fit_step(model, data)         operations, copies and bytes of a step of model.fit
        trace.function_step(f, *arguments)  the same of any function, beside its result
        trace.placement()                   TensorFlow's log of placement, as a table
        charts.timeline(step), charts.placement_map(step), charts.live_bytes(step)
    to know what it costs
        timing.measure(f), timing.compare(f, g)   seconds, with their spread; two ways in turn
        graph.flops(model), graph.parameters(model)
        memory.predict(model, batch), memory.fits(model, budget)   before anything runs
        memory.measure(step_of)             what a large batch will hold, from small ones
        whatif.explain(step), whatif.faster(step, pattern), whatif.towers(step, n)
                                            who waited for what, and what a change would give
        scaling.measure(step_of), scaling.fit(workload, measurements)
                                            what more devices would give, and how sure that is
    to use several devices
        fit.strategy(plan)                  model.fit on all of them, and on several machines
        fit.batches(x)                      its data, in one order on every worker
        fit.check(model, data)              what it would do wrong, before it does
        fit.explain(model, data)            where the time of its steps goes
        fit.use(model, plan)                a built model's model.fit on all of them
        fit.use(model, plan, stages=2)      its layers in stages, each on its device
        fit.use(model, plan, layers={...})  large layers, a part on each device
        fit.use(model, plan, state="owners")   weights and slots shared out by bytes
        fit.use(model, pieces=4)            a batch of model.fit in pieces: the memory of one
        fit.use(model, recompute=True)      activations computed twice, not kept
        towers.make_parallel(function, plan.devices)   a function on all of them
        pipeline.best_cut(step, plan.devices, layers)   where its layers are best cut into stages
        ensemble.from_keras(name, model, device), ensemble.train(members, data)   several models
        jobs.run(commands), jobs.grid(width=[32, 64])   scripts, each on a device of its own
        cluster.run(script), cluster.check()   one training on several machines
    besides
        lessons                             what only the lessons need

In a terminal `mgpu` says what this machine is, `mgpu lessons DIR` copies the lessons of this
version into a folder, and `mgpu --help` lists what else it does.
"""

__version__ = "0.1.0"
