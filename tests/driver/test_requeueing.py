"""What lost runners held goes back into the line, each request once."""

from algorithms.rollout.scheduler import Dispatch, DispatchPlan
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import Prompt, Request, RunnerReport, Sampling
from tests.hand_made import answer


def rollout_of(key, version):
    request = Request(key, Prompt("q"), 0, 0, Sampling())
    return answer(request, prompt=[1], response=[2], correct=True, weights_version=version)


class Handle:
    """An actor's handle: calls go nowhere."""

    class advance:
        @staticmethod
        def remote(*arguments):
            return object()


def dispatch_of(count):
    supervisor = WorkerSupervisor(
        {1: Handle, 2: Handle}, timeout_s=60.0, weights=lambda: (0, {}), kill=lambda handle: None
    )
    requests = [Request(key, Prompt("q"), 0, 0, Sampling()) for key in range(count)]
    dispatch = Dispatch(supervisor, DispatchPlan.of(continuous_batching=True, max_num_seqs=4))
    dispatch.add(requests)
    return supervisor, dispatch


def holding(supervisor, dispatch, number):
    """Give a runner all that waits."""
    supervisor.runners[number].held = {request.id: request for request in dispatch._waiting}


def held_by_two(count):
    """Runners 1 and 2 hold copies of the same requests, and none waits."""
    supervisor, dispatch = dispatch_of(count)
    holding(supervisor, dispatch, 1)
    holding(supervisor, dispatch, 2)
    dispatch._shared = {key: (supervisor.runners[1], supervisor.runners[2]) for key in range(count)}
    dispatch._waiting.clear()
    return supervisor, dispatch


def test_a_copy_whose_holders_are_both_lost_is_played_once_more():
    supervisor, dispatch = held_by_two(3)
    for runner in supervisor.runners.values():
        supervisor.lose(runner, "died")
    dispatch._requeue(supervisor.take_orphans())
    assert sorted(request.id for request in dispatch._waiting) == [0, 1, 2]
    assert dispatch.report.requeued == 3


def test_a_copy_that_another_runner_holds_does_not_go_back_until_that_one_is_lost_too():
    supervisor, dispatch = held_by_two(2)
    supervisor.lose(supervisor.runners[1], "died")
    dispatch._requeue(supervisor.take_orphans())
    assert not dispatch._waiting
    supervisor.lose(supervisor.runners[2], "died")
    dispatch._requeue(supervisor.take_orphans())
    assert [request.id for request in dispatch._waiting] == [0, 1]


def test_what_was_given_before_an_error_waits_again():
    """A stream that goes on after one: answers to earlier calls count for nothing."""
    supervisor, dispatch = dispatch_of(4)
    holding(supervisor, dispatch, 1)
    dispatch._waiting.clear()
    supervisor.lose(supervisor.runners[2], "died")
    dispatch.begin()
    assert [request.id for request in dispatch._waiting] == [0, 1, 2, 3]
    assert not supervisor.runners[1].held


def test_what_is_given_up_is_dropped_wherever_it_is():
    supervisor, dispatch = dispatch_of(4)
    runner = supervisor.runners[1]
    runner.held = {key: dispatch._waiting.popleft() for key in (0, 1)}
    dispatch.cancel([1, 2])
    assert list(runner.held) == [0] and runner.to_withdraw == [1]
    assert [request.id for request in dispatch._waiting] == [3]
    assert sorted(dispatch.missing) == [0, 3]


def test_nothing_older_than_its_request_is_taken():
    supervisor, dispatch = dispatch_of(0)
    for version in (4, 5, 6):
        supervisor.version = version
        dispatch.add([Request(version, Prompt("q"), 0, 0, Sampling())])
    stale = {
        (key, sampled): dispatch._is_stale(rollout_of(key, sampled)) for key in (4, 5, 6) for sampled in range(3, 8)
    }
    assert {pair for pair, found in stale.items() if not found} == {(4, 4), (4, 5), (4, 6), (5, 5), (5, 6), (6, 6)}


def test_a_second_copy_of_what_has_ended_may_have_been_begun_by_older_weights():
    """It ended before its runner heard that another one was faster: no reason to take that runner's work away."""
    supervisor, dispatch = held_by_two(3)
    first, second = supervisor.runners.values()
    begun, supervisor.version = supervisor.version, supervisor.version + 1
    for runner in (first, second):
        runner.send([], supervisor.round, 1.0)
        dispatch._take(runner, runner.answered(next(iter(runner.calls))), ended(0, begun, unfinished=2))
    assert sorted(dispatch.missing) == [1, 2] and len(dispatch._ended) == 1
    assert second.ready and list(second.held) == [1, 2]
    assert (dispatch.report.stale, dispatch.report.requeued) == (0, 0)


def test_what_comes_in_while_nobody_polls_is_there_at_the_next_poll(monkeypatch):
    """With rollouts beside the learners somebody looks after the lost while answers come in."""
    supervisor, dispatch = dispatch_of(2)
    answers = {}
    monkeypatch.setattr(supervisor, "_wait", lambda seconds: answers_that_came(supervisor, answers))
    monkeypatch.setattr(supervisor, "_result", lambda runner, reference: answers[reference])
    dispatch.turn(0.0)
    runner = next(runner for runner in supervisor.runners.values() if runner.held)
    call = next(reference for reference, call in runner.calls.items() if call.given)
    key = next(iter(runner.held))
    answers[call] = ended(key, supervisor.version, unfinished=1)
    supervisor.attend()
    assert [rollout.request_id for rollout in dispatch.turn(0.0)] == [key] and key not in runner.held
    answers.clear()
    assert dispatch.turn(0.0) == []
    # What another round has asked for is nobody's.
    supervisor._kept = [(runner, None, None)]
    supervisor.begin_round()
    assert dispatch.turn(0.0) == []


def ended(key, version, *, unfinished):
    return RunnerReport((rollout_of(key, version),), unfinished, 2, 0.1)


def answers_that_came(supervisor, answers):
    return [(call, runner) for runner in supervisor.runners.values() for call in list(runner.calls) if call in answers]
