"""A history that rots on disk costs the run what it can no longer read, and nothing else."""

import pytest

from algorithms.grpo.types import to_entry
from algorithms.r3_grpo.reflection import Reflection
from algorithms.r3_grpo.replay import Replay

from .conftest import batch_of, plain_group, sample


@pytest.fixture
def damaged(stub):
    """An algorithm whose history has one right and one wrong answer, both damaged."""
    algorithm = stub(reflection={"enabled": True, "min_attempts": 1, "max_share": 1.0})
    for one in (sample([30], True), sample([31])):
        algorithm.history.add(to_entry(one, 1))
    algorithm.history.record("q", False, 0.0)
    algorithm.history._database._connection.execute("UPDATE responses SET text=x'ff'")
    return algorithm


def test_a_step_goes_on_without_the_damaged_response_and_counts_it(damaged, caplog):
    group = plain_group(sample([10]), sample([11]))
    batch = batch_of(group)
    damaged.the(Replay).is_informative(group)
    damaged.compose_groups(batch)
    assert damaged.metric("replay/added") == 0 and len(group.samples) == 2
    damaged.update_history(batch)
    damaged.finish_history(batch)
    assert batch.record["replay/damaged"] == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the history: a stored response is damaged (its checksum differs) and is left out")
    damaged.update_history(batch)
    damaged.finish_history(batch)
    assert batch.record["replay/damaged"] == 0


def test_no_reflection_quotes_a_damaged_failure(damaged):
    assert damaged.the(Reflection).prompts(["q"], 5) == []
    assert damaged.history.count_damaged() == 1
