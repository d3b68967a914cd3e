"""Answers to the exercises of lesson 16: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def slowest(parameters, step, servers, efficiency):
    share = efficiency / (1 - efficiency)
    return 8 * parameters * (1 - 1 / servers) * share / step
""",
        """
from fractions import Fraction
def slowest(parameters, step, servers, efficiency):
    step, efficiency = Fraction(step), Fraction(efficiency)
    sent = Fraction(2 * (servers - 1), servers) * 4 * parameters
    return sent / (step * (1 - efficiency) / efficiency)
""",
    ],
    2: [
        "from fractions import Fraction\n"
        "share_of_peak = lambda *given: Fraction(np.prod([*given[:3], 1 / given[3]]) / given[4])",
        "share_of_peak = lambda f, examples, epochs, s, peak: f * examples * epochs / (s * peak)",
    ],
}

WRONG = {
    1: [
        ("2 * (servers - 1) / servers * ", "", "4 servers and an efficiency of 0.8 want 6e+09"),
        ("2 * (servers - 1) / servers", "2 * (servers - 1)", "1e+09 bytes a second, not 2e+09"),
        ("step / efficiency - step", "step", "of 0.8 want 4e+09 bytes a second, not 1e+09"),
        (" * 4 *", " *", "want 1e+09 bytes a second, not 2.5e+08"),
        (" * 4 *", " * 32 *", "want 1e+09 bytes a second, not 8e+09"),
        ("step / efficiency - step", "step * (1 - efficiency)", "want 1e+09 bytes a second, not"),
    ],
    2: [
        (" * epochs", "", "give 5, not 0.25"),
        ("return ", "return 100 * ", "give 5, not 500"),
        ("return ", "return 3 * ", "give 5, not 15"),
        (" / seconds", "", "give 0.5, not 2"),
        ("return flops * examples * epochs / seconds / peak",
         "return round(flops * examples * epochs / seconds / peak, 1)", "7 epochs"),
    ],
}
