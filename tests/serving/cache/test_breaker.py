"""A service that fails is left alone, for longer and longer."""

from mlx_platform.serving.cache.breaker import Breaker


def test_slow_answers_open_it_after_some_and_a_refused_connection_at_once():
    breaker = Breaker(3)
    assert [breaker.fail(surely=False) for _ in range(3)] == [False, False, True]
    assert breaker.open
    assert Breaker(3).fail(surely=True)


def test_an_answer_in_between_forgives_what_was_slow():
    breaker = Breaker(3)
    for _ in range(10):
        breaker.fail(surely=False)
        breaker.fail(surely=False)
        breaker.succeed()
    assert not breaker.open


def test_pauses_grow_to_half_a_minute_until_a_request_is_answered():
    breaker = Breaker(jitter=lambda: 1.0)
    breaker.fail(surely=True)
    assert [breaker.next_pause() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    breaker.close()
    breaker.fail(surely=True)
    assert breaker.next_pause() == 30
    breaker.close()
    breaker.succeed()
    assert breaker.next_pause() == 0.5


def test_pauses_of_many_servers_differ():
    pauses = {Breaker().next_pause() for _ in range(20)}
    assert len(pauses) > 15
    assert all(0.25 <= pause <= 0.5 for pause in pauses)
