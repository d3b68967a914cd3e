"""What only the lessons need: networks, digits, published tables, checks of exercises.

Nothing outside this folder imports from it.
"""
