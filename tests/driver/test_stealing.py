"""What an idle runner takes from the others when nothing waits any more."""

from dataclasses import replace

from algorithms.rollout.remote_runner import SILENT_S, RemoteRunner, far_behind, plan_steal
from algorithms.rollout.scheduler import DispatchPlan
from algorithms.rollout.stream import RolloutStream
from algorithms.rollout.types import Prompt, Request, RunnerReport, Sampling, Split

SLOTS = 4


def runner(number, *ids, speed=10.0, heard=0.0):
    held = {key: Request(key, Prompt("q"), 0, 0, Sampling()) for key in ids}
    return RemoteRunner(number, None, held=held, speed=speed, last_heard=heard)


def stolen(receiver, runners, moved=(), now=0.0):
    found = plan_steal(receiver, runners, SLOTS, moved, now)
    return None if found is None else (found.victim.number, [r.id for r in found.requests], found.shared)


def test_half_of_what_has_not_begun_is_taken_from_the_end_of_the_longest_line():
    receiver, little, much = runner(0), runner(1, *range(6)), runner(2, *range(10, 20))
    assert stolen(receiver, [receiver, little, much]) == (2, [17, 18, 19], False)


def test_no_more_is_taken_than_there_are_free_slots():
    receiver, much = runner(0, 90, 91, 92), runner(1, *range(20))
    assert stolen(receiver, [receiver, much]) == (1, [19], False)


def test_the_line_of_a_slow_runner_is_longer():
    receiver, slow, fast = runner(0), runner(1, *range(6), speed=1.0), runner(2, *range(10, 17), speed=10.0)
    assert stolen(receiver, [receiver, slow, fast]) == (1, [5], False)


def test_what_has_begun_stays_with_a_runner_that_keeps_up():
    receiver, other = runner(0), runner(1, 1, 2, 3)
    assert stolen(receiver, [receiver, other]) is None


def test_what_a_straggler_has_begun_is_copied_by_an_idle_runner_but_once():
    receiver, third, straggler = runner(0), runner(2), runner(1, 1, 2, 3, speed=2.0)
    runners = [receiver, third, straggler]
    assert stolen(receiver, runners) == (1, [1, 2, 3], True)
    third.held.update({1: straggler.held[1], 2: straggler.held[2]})
    assert stolen(receiver, runners) == (1, [3], True)
    third.held.update(straggler.held)
    assert stolen(receiver, runners) is None
    receiver.held.update(third.held | {9: Request(9, Prompt("q"), 0, 0, Sampling())})
    assert stolen(receiver, runners) is None  # it has work of its own


def test_ahead_of_the_learners_nothing_that_has_begun_is_copied():
    receiver, straggler = runner(0), runner(1, *range(6), speed=2.0)
    runners = [receiver, straggler, runner(2)]
    assert plan_steal(receiver, runners, SLOTS, (), 0.0, copies=False).shared is False  # two wait
    del straggler.held[4], straggler.held[5]
    assert plan_steal(receiver, runners, SLOTS, (), 0.0, copies=False) is None
    assert plan_steal(receiver, runners, SLOTS, (), 0.0).shared is True
    straggler.held[2] = replace(straggler.held[2], split=Split.EVALUATION)  # under weights that stay
    assert [each.id for each in plan_steal(receiver, runners, SLOTS, (), 0.0, copies=False).requests] == [2]
    ahead, waited_for = (RolloutStream(None, DispatchPlan(4, 4, 1, 1), ahead=ahead) for ahead in (True, False))
    assert (ahead.dispatch.copies, waited_for.dispatch.copies) == (False, True)


def test_what_moved_to_a_runner_that_then_stalls_is_copied_too():
    thief, first = runner(1, 6, heard=0.0), runner(0, heard=300.0)
    assert stolen(first, [first, thief], moved={6}, now=300.0) == (1, [6], True)
    first.to_withdraw.append(6)  # it is still told to drop it
    assert stolen(first, [first, thief], moved={6}, now=300.0) is None


def test_a_silent_runner_is_behind_when_calls_do_not_take_that_long():
    silent, other = runner(1, 1, heard=0.0), runner(2, heard=100.0)
    assert not far_behind(silent, [silent, other], now=SILENT_S - 0.1)
    assert far_behind(silent, [silent, other], now=SILENT_S + 0.1)
    other.longest_call_s = 60.0  # a batch engine answers at the end of a batch
    assert not far_behind(silent, [silent, other], now=SILENT_S + 0.1)


def test_calls_get_shorter_when_they_bring_much_and_longer_when_they_bring_little():
    busy, quiet = runner(1, *range(8)), runner(2, *range(8))
    for _ in range(20):
        busy.adapt(report(rollouts=40), SLOTS, wanted=4)
        quiet.adapt(report(rollouts=0), SLOTS, wanted=4)
    assert busy.call_s < 0.25 < quiet.call_s <= 5.0


def report(rollouts):
    return RunnerReport((None,) * rollouts, unfinished=4, generated_tokens=10, engine_seconds=0.5)
