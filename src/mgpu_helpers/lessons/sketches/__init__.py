"""Drawings of an idea, before there is any data: a module for each lesson, made of `base`."""
