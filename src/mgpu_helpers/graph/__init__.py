"""What a function or a Keras model asks for, counted from its graph before it runs."""

from mgpu_helpers.graph.counting import Count, count, flops
from mgpu_helpers.graph.step import TrainingStep, parameters, training_step

__all__ = ["Count", "count", "flops", "parameters", "training_step", "TrainingStep"]
