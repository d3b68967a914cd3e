"""Answers to the exercises of lesson 15: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def in_order(pairs, within, between):
    (a, b), (c, d) = pairs
    return (d, c, b, a) if between < within else (b, c, a, d)
"""],
    2: ["""
import numpy as np
def crossing(weights, cut, batch, rows):
    return np.array([batch * cut, weights * (rows - 1)]) * 2
"""],
}

WRONG = {
    1: [
        ("within > between", "True", "have to be between the rows"),
        ("within > between", "False", "have to be within the rows"),
        ("[a, c, b, d]", "[a, c, d, b]", "neither into one row"),
        ("[a, c, b, d]", "[(a, c), (b, d)]", "2 entries, not four"),
        ("[a, c, b, d]", "[a, c, a, c]", "stands in the list once"),
    ],
}
