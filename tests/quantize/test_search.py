import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.quantize.search import Forgetful, Limits, Search
from mlx_platform.quantize.sensitivity import Distance

HARM = {"a": 0.5, "b": 0.02, "c": 0.3, "d": 0.01, "e": 0.0, "f": 0.1}


def world(harm=HARM, floor: float = 0.0):
    """Layers whose harm adds up: the loss is the sum of the harm of those that are integer."""
    calls: list[frozenset[str]] = []

    def measure(reverted: frozenset[str]) -> Distance:
        calls.append(reverted)
        harmed = floor + sum(value for name, value in harm.items() if name not in reverted)
        return Distance(harmed, harmed)

    return measure, calls


def search(measure, tolerated: float, harm=HARM, limits: Limits | None = None, **more) -> Search:
    return Search(dict.fromkeys(harm, 100), measure, tolerated, limits or Limits(), **more)


def test_the_fewest_layers_that_suffice_come_first() -> None:
    measure, _ = world()
    found = search(measure, 0.15)

    first = next(found.proposals())

    assert first.reverted == {"a", "c"}
    assert first.fits
    assert [one.node for one in found.ranking] == ["a", "c", "f", "b", "d", "e"]
    assert found.ranking[0].gain == pytest.approx(0.5)


def test_every_proposal_leaves_at_most_half_of_the_divergence_of_the_one_before() -> None:
    measure, _ = world()

    left = [proposal.distance.divergence for proposal in search(measure, 0.2).proposals()]

    assert len(left) == 3
    assert all(after <= before / 2 for before, after in pairwise(left))


def test_where_all_integer_is_good_enough_already_half_of_its_divergence_is_proposed() -> None:
    measure, _ = world()

    first = next(search(measure, 2.0).proposals())

    assert first.reverted == {"a"}


def test_a_cheap_layer_is_preferred_to_one_that_gains_a_little_more() -> None:
    harm = {"large": 0.5, "small": 0.4, "rest": 0.1}
    measure, _ = world(harm)
    found = Search({"large": 10_000, "small": 10, "rest": 10}, measure, 0.6, Limits())

    assert next(found.proposals()).reverted == {"small"}


def test_a_layer_that_is_not_needed_becomes_integer_again() -> None:
    def measure(reverted: frozenset[str]) -> Distance:
        # Only both together help; the decoy looks best alone and adds nothing to them.
        loss = 1.0 - 0.2 * ("decoy" in reverted) - 0.1 * ("x" in reverted) - 0.05 * ("y" in reverted)
        return Distance(0.1, 0.1) if {"x", "y"} <= reverted else Distance(loss, loss)

    found = Search(dict.fromkeys(("decoy", "x", "y", "z"), 1), measure, 0.2, Limits())

    assert next(found.proposals()).reverted == {"x", "y"}


def test_where_nothing_is_good_enough_the_divergence_alone_is_halved() -> None:
    harm = dict.fromkeys("abcdef", 1.0)
    measure, _ = world(harm, floor=1.0)

    proposals = list(search(measure, 0.5, harm).proposals())

    assert [proposal.distance.divergence for proposal in proposals] == [3.0]
    assert not proposals[0].fits


def test_nothing_is_proposed_where_all_but_one_layer_do_not_halve_the_divergence() -> None:
    measure, _ = world({"a": 1.0, "b": 1.0}, floor=9.0)

    assert list(search(measure, 0.5, {"a": 1.0, "b": 1.0}).proposals()) == []


def test_a_model_of_one_layer_has_nothing_to_propose() -> None:
    measure, _ = world({"only": 1.0})

    assert list(search(measure, 0.5, {"only": 1.0}).proposals()) == []


@pytest.mark.parametrize("evals", [9, 14])
def test_a_limit_of_candidates_is_kept_and_the_best_so_far_proposed(evals: int) -> None:
    harm = {f"layer{index}": 1.0 for index in range(40)}
    measure, calls = world(harm)
    found = search(measure, 20.0, harm, Limits(evals=evals))

    proposals = list(found.proposals())

    assert len(calls) == evals
    assert found.stopped == "evals"
    assert len(proposals) == 1
    assert proposals[0].fits
    fitting = [reverted for reverted, distance in found.points if distance.loss <= 20]
    assert len(proposals[0].reverted) == min(map(len, fitting))


def test_no_candidate_at_all_may_be_measured() -> None:
    measure, calls = world()
    found = search(measure, 0.1, limits=Limits(evals=0))

    assert list(found.proposals()) == []
    assert (calls, found.stopped) == ([], "evals")


def test_a_limit_of_time_ends_the_search() -> None:
    measure, calls = world()
    hours = iter(range(1000))
    found = search(measure, 0.0, limits=Limits(seconds=4.5), clock=lambda: float(next(hours)))

    list(found.proposals())

    assert found.stopped == "time"
    assert 0 < len(calls) < 8


@pytest.mark.parametrize(
    ("limits", "cut"),
    [(Limits(evals=200, seconds=18.0), "time"), (Limits(evals=15), "evals"), (Limits(), "")],
)
def test_layers_that_a_limit_leaves_no_room_to_look_at_are_counted(limits: Limits, cut: str) -> None:
    harm = {f"layer{index}": 1.0 for index in range(10)}
    measure, _ = world(harm)
    hours = iter(range(1000))
    found = search(measure, 9.5, harm, limits, clock=lambda: float(next(hours)))

    next(found.proposals())

    assert (found.cut, found.stopped) == (cut, "")
    assert found.unranked == len(harm) - len(found.ranking)
    assert bool(found.unranked) is bool(cut)


def test_what_was_measured_before_is_not_measured_again() -> None:
    measure, calls = world()
    memory = Forgetful()
    first = list(search(measure, 0.15, memory=memory).proposals())
    before = len(calls)

    again = search(measure, 0.15, memory=memory, limits=Limits(evals=0))

    assert list(again.proposals()) == first
    assert len(calls) == before


def test_the_watcher_is_told_of_every_candidate() -> None:
    measure, calls = world()
    told: list[int] = []
    found = search(measure, 0.15, advance=told.append)

    list(found.proposals())

    assert sum(told) == len(calls)
    assert len({reverted for reverted, _ in found.points}) == len(found.points) == len(calls)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=24),
    st.floats(0.0, 0.99),
    st.integers(1, 60),
)
def test_whatever_the_layers_do_limits_hold_and_what_fits_is_tolerated(
    harms: list[float], share: float, evals: int
) -> None:
    harm = {f"layer{index}": value for index, value in enumerate(harms)}
    measure, calls = world(harm)
    tolerated = share * math.fsum(harms)
    found = search(measure, tolerated, harm, Limits(evals=evals))

    proposals = list(found.proposals())

    assert len(calls) <= evals
    assert len({proposal.reverted for proposal in proposals}) == len(proposals)
    for proposal in proposals:
        assert 0 < len(proposal.reverted) < len(harm)
        assert proposal.fits == (proposal.distance.loss <= tolerated)
