"""Training over real runners that are killed: nobody waits for the loss to be noticed, and no prompt is lost."""

import os
import signal
import threading

import pytest
import ray

pytestmark = pytest.mark.slow

BACK_S = 300
STEPS = 8


class Health:
    """Waits until a runner is lost, or back, and counts the requests that each is given."""

    def __init__(self, algorithm):
        self.supervisor = algorithm.rollout_workers.supervisor
        self._changed, self._on_health = threading.Condition(), self.supervisor._on_health
        self.supervisor._on_health = self._note
        self.lost, self.back, self.given = set(), set(), dict.fromkeys(self.supervisor.runners, 0)
        for runner in self.supervisor.runners.values():
            runner.send = self._counting(runner.number, runner.send)

    def _note(self, number, healthy):
        self._on_health(number, healthy)
        with self._changed:
            (self.back if healthy else self.lost).add(number)
            self._changed.notify_all()

    def _counting(self, number, send):
        def counting(requests, *arguments):
            self.given[number] += len(requests)
            send(requests, *arguments)

        return counting

    def wait(self, numbers, number):
        with self._changed:
            assert self._changed.wait_for(lambda: number in numbers, BACK_S)
        with self.supervisor.lock:  # until who noticed it has done what follows
            pass

    def kill(self, number):
        self.lost.discard(number)
        self.back.discard(number)
        os.kill(ray.get(self.supervisor.runners[number].handle.get_pid.remote()), signal.SIGKILL)


def train(algorithm):
    algorithm.train()
    record = algorithm.batch.record
    assert record["rollout/prompts_completed"] == record["rollout/prompts_expected"] == 6
    assert record["policy/logp_mismatch_max"] < 1e-4
    return record


def in_next_update(algorithm, monkeypatch, disturbance):
    """Have something happen while the policy is updated and nothing is rolled out."""
    update = algorithm.update_policy

    def disturbed(batch):
        disturbance()
        update(batch)

    disturbed.__name__ = "update_policy"
    monkeypatch.setattr(algorithm, "update_policy", disturbed)


def sampled(algorithm):
    return [(group.prompt.uid, s.rollout.tokens.tolist()) for group in algorithm.batch.groups for s in group.samples]


def test_a_runner_killed_after_step_two_of_eight_changes_no_number_and_works_again(config, build):
    """A policy that stays as it is, so that what float noise does to one response is not in the next steps."""
    undisturbed = build(config.copy(copy_frozen=False).env_runners(num_env_runners=0).training(lr=0.0))
    algorithm = build(config.copy(copy_frozen=False).training(lr=0.0))
    health, different, recoveries = Health(algorithm), 0, []
    for step in range(1, STEPS + 1):
        if step == STEPS:
            health.wait(health.back, 1)
            health.given[1] = 0
        record, reference = train(algorithm), train(undisturbed)
        pairs = list(zip(sampled(algorithm), sampled(undisturbed), strict=True))
        assert all(ours[0] == theirs[0] for ours, theirs in pairs)
        different += sum(ours[1] != theirs[1] for ours, theirs in pairs)
        assert record["reward/mean"] == pytest.approx(reference["reward/mean"], abs=2.5 / len(pairs))
        recoveries.append(record["rollout/runner_recovery_s"])
        if step == 2:
            health.kill(1)
        if step == 3:
            health.wait(health.lost, 1)
    assert different <= 2
    assert health.given[1] > 0  # in a step that began when it was ready
    assert record["rollout/runner_restarts"] == 1
    assert sum(seconds > 0 for seconds in recoveries) == 1


def test_a_spare_works_in_the_step_after_a_runner_was_killed_in_an_update(config, build, monkeypatch):
    algorithm = build(config.copy(copy_frozen=False).env_runners(spares=1))
    health = Health(algorithm)
    if not algorithm.rollout_workers.supervisor.runners[3].ready:
        health.wait(health.back, 3)
    train(algorithm)
    assert health.given[3] == 0

    def kill():
        health.kill(1)
        health.wait(health.lost, 1)

    with monkeypatch.context() as patch:
        in_next_update(algorithm, patch, kill)
        train(algorithm)
    record = train(algorithm)
    assert health.given[3] > 0  # whether or not runner 1 is back by now
    assert len(algorithm.rollout_workers.supervisor.ready()) == 2
    assert record["rollout/requeued"] == record["rollout/stale"] == 0
    health.wait(health.back, 1)
    assert algorithm.rollout_workers.supervisor.runners[1].spare
