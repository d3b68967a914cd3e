"""Place, measure and chart TensorFlow work on several devices; lesson 00 shows where to start."""

__version__ = "0.1.0"
