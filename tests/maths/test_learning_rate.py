"""The schedule of the learning rate against transformers' own schedulers, optimizer step by optimizer step."""

import pytest
import torch
from transformers.optimization import get_scheduler

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.learning_rate import learning_rate

LR = 0.5


def settings(**changes):
    return TrainingSettings(lr=LR, **changes)


def rates(count, steps, **changes):
    return [learning_rate(number, settings(**changes), steps) for number in range(1, count + 1)]


def of_transformers(name, warmup, total, **options):
    """The rate of each optimizer step, the first one without having stepped the scheduler."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = get_scheduler(name, optimizer, warmup, total, options)
    found = []
    for _ in range(total):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("warmup", [0, 7])
@pytest.mark.parametrize(
    ("schedule", "floor", "name", "options"),
    [
        ("linear", 0.0, "linear", {}),
        ("cosine", 0.0, "cosine", {}),
        ("cosine", 0.1, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ("constant", 0.0, "constant", {}),
    ],
)
def test_behind_the_warm_up_it_is_transformers_schedule(schedule, floor, name, options, warmup):
    found = rates(60, 60, lr_schedule=schedule, lr_min_share=floor, warmup_steps=warmup)
    assert found[warmup:] == pytest.approx(of_transformers(name, warmup, 60, **options)[warmup:], rel=1e-9)
    assert found[:warmup] == pytest.approx([LR * (number + 1) / 7 for number in range(warmup)])


def test_a_linear_schedule_with_a_floor_ends_one_step_above_it_and_stays_there_afterwards():
    found = rates(8, 4, lr_schedule="linear", lr_min_share=0.2)
    assert found == pytest.approx([LR * share for share in (1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2, 0.2)])


def test_the_constant_schedule_is_the_warm_up_and_then_the_rate_itself_bit_for_bit():
    assert rates(5, None, warmup_steps=3) == [LR * (1 / 3), LR * (2 / 3), LR, LR, LR]
    assert rates(5, 2) == [LR] * 5


def test_the_schedule_counts_the_optimizer_steps_of_all_mini_batches_and_passes():
    plain = rates(24, 24, lr_schedule="cosine", warmup_steps=5)
    assert rates(24, 4, lr_schedule="cosine", warmup_steps=5, minibatches=3, passes=2) == plain


def test_a_run_that_ends_within_its_warm_up_has_no_schedule():
    assert rates(3, 3, lr_schedule="linear", warmup_steps=10) == pytest.approx([LR * n / 10 for n in (1, 2, 3)])
