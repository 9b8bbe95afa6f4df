"""When delays count as an overload, and when no longer."""

from antiphon_worker.process.publisher import Lag


def seen(*delays: float, every: float = 0.03) -> tuple[Lag, float]:
    lag, now = Lag(), 100.0
    for delay in delays:
        now += every
        lag.note(now, delay)
    return lag, now


def test_nothing_seen_is_no_overload():
    assert not Lag().high(100.0)


def test_one_long_delay_is_no_overload_but_many_are():
    lag, now = seen(*[0.005] * 20, 0.2)
    assert not lag.high(now)
    lag, now = seen(*[0.005] * 20, *[0.2] * 5)
    assert lag.high(now)


def test_a_redis_that_is_far_away_is_no_overload():
    lag, now = seen(*[0.15] * 50)
    assert not lag.high(now)
    lag, now = seen(*[0.15] * 50, *[0.6] * 10)
    assert lag.high(now)


def test_it_ends_with_short_delays_and_with_silence():
    lag, now = seen(0.005, *[0.3] * 20, *[0.005] * 12)
    assert not lag.high(now)
    lag, now = seen(0.005, *[0.3] * 20)
    assert lag.high(now)
    assert not lag.high(now + 1.5)
    lag.note(now + 1.5, 0.1)
    assert not lag.high(now + 1.5)
