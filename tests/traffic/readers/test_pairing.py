from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.traffic.readers import seen
from mlx_platform.traffic.readers.entry import Body, Entry, Half
from mlx_platform.traffic.readers.pairing import Pairing
from mlx_platform.traffic.readers.seen import Seen


def half(key: int, side: Half, size: int = 1) -> Entry:
    body = Body(b"x" * size)
    return Entry(key=str(key), half=side, **{"request" if side == "request" else "response": body})


@settings(deadline=None)
@given(halves=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["request", "response"])), max_size=30))
def test_whatever_the_order_each_key_is_paired_once_or_left_once(halves: list[tuple[int, Half]]) -> None:
    pairing, met = Pairing(), Seen()
    given_out = [entry for key, side in halves for entry in pairing.add(half(key, side))]
    kept = [
        (int(entry.key), entry.half)
        for entry in (*given_out, *pairing.finish())
        if not entry.repeated and met.add(entry.key, entry.half)
    ]
    wanted = {
        (key, "both" if {(key, "request"), (key, "response")} <= set(halves) else side)
        for key, side in halves
    }
    assert sorted(kept) == sorted(wanted)


def test_halves_that_wait_too_long_make_room_for_new_ones() -> None:
    pairing = Pairing(waiting_bytes=10_000)
    left = [entry for key in range(20) for entry in pairing.add(half(key, "request", size=1000))]
    assert [entry.key for entry in left] == [str(key) for key in range(16)]
    assert [entry.key for entry in pairing.finish()] == ["16", "17", "18", "19"]


def test_keys_stay_known_after_they_were_sorted_away(monkeypatch) -> None:
    monkeypatch.setattr(seen, "_RECENT", 64)
    met = Seen()
    assert all(met.add(str(key), "both") for key in range(1000))
    assert not any(met.add(str(key), "both") for key in range(1000))
    assert met.add("1000", "request")
    assert met.add("1000", "both")
