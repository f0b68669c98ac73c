"""When the truncation warning speaks."""

from algorithms.r3_grpo.truncation_watch import TruncationWatch


def _warnings(shares):
    watch = TruncationWatch(window=5)
    return [warning for truncated, correct in shares if (warning := watch.observe(truncated, correct))]


def test_warns_when_truncation_climbs_while_accuracy_falls():
    (warning,) = _warnings([(0.2, 0.5)] * 5 + [(0.6, 0.3)] * 5)
    assert "20% to 60%" in warning and "50% to 30%" in warning


def test_is_silent_when_accuracy_holds_or_truncation_does():
    assert not _warnings([(0.2, 0.5)] * 5 + [(0.6, 0.5)] * 10)
    assert not _warnings([(0.2, 0.5)] * 5 + [(0.2, 0.1)] * 10)


def test_says_it_once_in_a_window():
    assert len(_warnings([(0.2, 0.5)] * 5 + [(0.6, 0.3)] * 9)) == 1


def test_a_step_without_a_response_says_nothing():
    assert not _warnings([(0.1, 0.9)] * 9 + [(float("nan"), float("nan"))])
