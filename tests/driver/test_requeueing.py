"""What lost runners held goes back into the line, each request once."""

from algorithms.rollout.scheduler import DispatchPlan, _Dispatch
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import Prompt, Request, Sampling


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
    return supervisor, _Dispatch(supervisor, requests, DispatchPlan.of(continuous_batching=True, max_num_seqs=4), None)


def holding(supervisor, dispatch, number):
    """Give a runner all that waits."""
    supervisor.runners[number].held = {request.id: request for request in dispatch.waiting}


def held_by_two(count):
    """Runners 1 and 2 hold copies of the same requests, and none waits."""
    supervisor, dispatch = dispatch_of(count)
    holding(supervisor, dispatch, 1)
    holding(supervisor, dispatch, 2)
    dispatch.shared = {key: (supervisor.runners[1], supervisor.runners[2]) for key in range(count)}
    dispatch.waiting.clear()
    return supervisor, dispatch


def test_a_copy_whose_holders_are_both_lost_is_played_once_more():
    supervisor, dispatch = held_by_two(3)
    for runner in supervisor.runners.values():
        supervisor.lose(runner, "died")
    dispatch._requeue(supervisor.take_orphans())
    assert sorted(request.id for request in dispatch.waiting) == [0, 1, 2]
    assert dispatch.report.requeued == 3


def test_a_copy_that_another_runner_holds_does_not_go_back_until_that_one_is_lost_too():
    supervisor, dispatch = held_by_two(2)
    supervisor.lose(supervisor.runners[1], "died")
    dispatch._requeue(supervisor.take_orphans())
    assert not dispatch.waiting
    supervisor.lose(supervisor.runners[2], "died")
    dispatch._requeue(supervisor.take_orphans())
    assert [request.id for request in dispatch.waiting] == [0, 1]
