from mlx_platform.serving.company import Company


def together(company, now, count, gap=0.001):
    """So many come, one after the other, and leave in one batch."""
    for number in range(count):
        company.came(now + number * gap, number + 1)
    company.left(count)


def test_a_lone_client_is_never_made_to_wait():
    company = Company(0.01)
    for number in range(50):
        company.came(number * 0.002, 1)
        assert company.wait_until(number * 0.002, 1) == number * 0.002
        company.left(1)


def test_who_came_in_company_waits_for_it_and_not_when_all_are_there():
    company = Company(0.01)
    together(company, 1.0, 8)
    company.came(1.02, 1)
    assert 1.02 < company.wait_until(1.02, 1) <= 1.03
    for number in range(2, 9):
        company.came(1.02 + number * 0.0005, number)
    assert company.wait_until(1.02, 8) == 1.02


def test_the_longer_nobody_comes_the_less_is_waited_and_never_beyond_the_delay():
    company = Company(0.01)
    together(company, 1.0, 8)
    company.came(1.02, 1)
    alone = company.wait_until(1.02, 1)
    company.came(1.022, 2)
    assert alone < company.wait_until(1.02, 2) < 1.03


def test_company_that_comes_too_seldom_is_not_waited_for():
    company = Company(0.01)
    for number in range(100):
        company.came(1.0 + number, 2)
    assert company.wait_until(100.0, 1) == 100.0


def test_company_that_has_gone_is_soon_forgotten():
    company = Company(0.01)
    together(company, 1.0, 32)
    rounds = 0
    now = 2.0
    while True:
        now += 0.003
        company.came(now, 1)
        if company.wait_until(now, 1) == now:
            break
        company.left(1)
        rounds += 1
    assert rounds <= 6
