"""Which requests the candidate answers: a hash of the request's key, without any memory.

A key keeps its bucket for as long as the rollout lasts. Raising the weight adds buckets and takes none away,
so whoever was with the candidate stays there; at 0 everybody is back at once.
"""

import hashlib

BUCKETS = 10_000  # a hundredth of a percent each


def bucket(seed: str, key: str | bytes) -> int:
    """The bucket of a key, 0 to 9,999.

    Args:
        seed: the rollout's id, so that another rollout tries its version on other keys.
        key: what the caller calls itself or the request; the request's own id where it says nothing.
    """
    content = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
    salt = hashlib.blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=salt).digest(), "big") % BUCKETS


def goes_to_candidate(seed: str, key: str | bytes, percent: float) -> bool:
    """Whether the candidate answers a request, at a weight in percent. Monotone in the weight."""
    return percent > 0 and bucket(seed, key) < round(percent * BUCKETS / 100)


def is_copied(seed: str, key: str | bytes, percent: float) -> bool:
    """Whether a request that the stable version answers is copied to the candidate, at a share in percent."""
    return percent > 0 and (percent >= 100 or bucket(f"{seed}/shadow", key) < round(percent * BUCKETS / 100))
