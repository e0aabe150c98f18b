"""Other rows in the place of a baseline's own, on the same frozen bins."""

from dataclasses import replace

from mlx_platform.drift.counts import Counts
from mlx_platform.drift.feature import FeatureProfile
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.tally import Tally


def refit(profile: Profile, counts: Counts) -> Profile:
    """A profile with these counts for its baseline's; the bins, their id, range and scale stay.

    A window that is then compared is on the same bins as every other one of this baseline, so that the scores
    can be set side by side: of last week, or of features computed offline for the same requests.

    Raises:
        UsageError: the counts lie on other bins.
    """
    counts.check(profile)
    pairs = zip(profile.features, counts.tallies, strict=True)
    features = tuple(_refit(feature, tally) for feature, tally in pairs)
    return Profile(counts.rows, features, profile.positions, profile.baseline_id, profile.vocabularies)


def _refit(feature: FeatureProfile, tally: Tally) -> FeatureProfile:
    # The edges depend on the largest value, so both ends stay those that the bins were made from.
    own = feature.tally
    return replace(feature, tally=replace(tally, minimum=own.minimum, maximum=own.maximum))
