"""Exact tests of a share, with nothing but the logarithm of the gamma function.

The server imports no SciPy for them; the tests of this module compare every number with it.
"""

import math


def _log_term(k: int, trials: int, share: float) -> float:
    choose = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
    return choose + k * math.log(share) + (trials - k) * math.log1p(-share)


def upper_tail(count: int, trials: int, share: float) -> float:
    """P(X >= count) for X binomial: the chance of so many by luck."""
    if count <= 0:
        return 1.0
    if count > trials or share <= 0:
        return 0.0
    if share >= 1:
        return 1.0
    if count <= trials * share:  # the shorter side has fewer terms, and loses no digits
        return 1.0 - _sum_down(count - 1, trials, share)
    return _sum_up(count, trials, share)


def lower_tail(count: int, trials: int, share: float) -> float:
    """P(X <= count) for X binomial: the chance of so few by luck."""
    return upper_tail(trials - count, trials, 1.0 - share)


def _sum_up(count: int, trials: int, share: float) -> float:
    """The terms from `count` on, each from the one before, until they add nothing."""
    odds = share / (1.0 - share)
    term, total = 1.0, 1.0
    for k in range(count, trials):
        term *= (trials - k) / (k + 1) * odds
        total += term
        if term < total * 1e-17:
            break
    return min(1.0, total * math.exp(_log_term(count, trials, share)))


def _sum_down(count: int, trials: int, share: float) -> float:
    return _sum_up(trials - count, trials, 1.0 - share)


def upper_bound(count: int, trials: int, confidence: float = 0.95) -> float:
    """The exact one-sided upper bound of a share (Clopper and Pearson, Biometrika 26, 1934)."""
    if trials <= 0 or count >= trials:
        return 1.0
    if count == 0:
        return float(-math.expm1(math.log1p(-confidence) / trials))
    low = count / trials
    high = min(1.0, low + 4.0 * math.sqrt(low / trials) + 10.0 / trials)
    if lower_tail(count, trials, high) > 1.0 - confidence:
        low, high = high, 1.0
    for _ in range(45):
        middle = (low + high) / 2
        if lower_tail(count, trials, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def sequential_evidence(count: int, trials: int, share: float) -> float:
    """How strongly failures speak against a share of at most `share`; it may be asked at any time.

    The logarithm of a mixture of likelihood ratios against ten higher shares, each with twice the odds of the
    one before. While the true share is not higher, the chance that this ever exceeds log(1 / alpha) is below
    alpha, however often somebody looks (Ville, 1939).
    """
    odds = share / (1.0 - share)
    exponents = []
    for doubling in range(1, 11):
        other = 2.0**doubling * odds
        other /= 1.0 + other
        exponents.append(
            count * math.log(other / share) + (trials - count) * math.log((1.0 - other) / (1.0 - share))
        )
    largest = max(exponents)
    return largest + math.log(sum(math.exp(exponent - largest) for exponent in exponents) / len(exponents))


def requests_to_pass(count: int, share: float, confidence: float = 0.95) -> int:
    """The fewest requests with `count` failures whose upper bound is below `share`."""
    low, high = count, count + 1
    while lower_tail(count, high, share) >= 1.0 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if lower_tail(count, middle, share) < 1.0 - confidence:
            high = middle
        else:
            low = middle
    return high
