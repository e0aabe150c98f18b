from mlx_platform.serving.rollout.lease import Lease, LeaseWatch, patience


def test_a_lease_reads_back():
    lease = Lease("r1", "server-a", 7)
    assert Lease.decode(lease.encode()) == lease
    assert Lease.decode("") is None
    assert Lease.decode("[]") is None
    assert Lease.decode('{"rollout":"r1","holder":"a","renewals":"x"}') is None


def test_a_lease_is_fresh_while_its_count_changes():
    watch, lease = LeaseWatch(), Lease("r1", "a")
    watch.see(lease, 100.0)
    assert watch.fresh("r1", "a", 102.9, 3.0)
    watch.see(lease, 102.9)  # read again, and still the same
    assert not watch.fresh("r1", "a", 103.0, 3.0)
    watch.see(Lease("r1", "a", 1), 103.0)
    assert watch.fresh("r1", "a", 105.9, 3.0)


def test_the_lease_of_another_rollout_or_holder_does_not_count():
    watch = LeaseWatch()
    assert not watch.fresh("r1", "a", 0.0, 3.0)
    watch.see(Lease("r1", "a"), 0.0)
    assert not watch.fresh("r2", "a", 0.0, 3.0)
    assert not watch.fresh("r1", "b", 0.0, 3.0)
    watch.see(None, 1.0)
    assert not watch.fresh("r1", "a", 1.0, 3.0)


def test_whoever_was_just_named_is_waited_for_as_long_as_for_a_lease():
    watch = LeaseWatch()
    assert watch.is_awaited("r1", "a", 10.0, 3.0)
    assert watch.is_awaited("r1", "a", 12.9, 3.0)
    assert not watch.is_awaited("r1", "a", 13.0, 3.0)
    assert watch.is_awaited("r1", "b", 13.0, 3.0)
    assert not watch.is_awaited("r1", "b", 16.0, 3.0)
    assert watch.is_awaited("r2", "b", 16.0, 3.0)
    watch.see(Lease("r2", ""), 16.1)  # a goodbye
    assert not watch.is_awaited("r2", "b", 16.1, 3.0)


def test_short_looks_leave_three_seconds():
    assert patience(0.2) == 3.0
    assert patience(30.0) == 90.0
