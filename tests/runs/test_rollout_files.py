import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.grpo.types import Group, Sample
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.types import Prompt, Rollout, Split, Turn
from algorithms.train.recorder import reference_answer
from algorithms.train.rollout_files import (
    RolloutRow,
    TokenData,
    TokenPieces,
    read_group_lengths,
    read_rollouts,
    rollout_rows,
    write_rollouts,
)
from r3env.envs.math import MathEnv

ROW = RolloutRow(
    step=3, uid="abc", group=1, context="plain", prompt="1+1?", response="\\boxed{2}", reward=1.0,
    advantage=0.5, correct=True, truncated=False, verdict="equal", tokens=7, replayed=False,
)  # fmt: skip


def test_rows_come_back_as_they_went_in(tmp_path):
    rows = [
        ROW,
        replace(ROW, context="reflection", verdict="timeout", correct=False, replayed=True, reward=-0.25),
    ]
    write_rollouts(tmp_path / "new" / "step-000003.parquet", rows)
    assert read_rollouts(tmp_path / "new" / "step-000003.parquet") == rows


def two_turns(advantages):
    """A rollout of two turns, of three tokens and of two, in a group that shares its baseline."""
    mask = np.zeros(10, bool)
    mask[[2, 3, 4, 7, 8]] = True
    turns = (Turn(2, 5, reward=0.25, feedback="No."), Turn(7, 9, reward=1.0, correct=True))
    messages = tuple({"role": role, "content": role} for role in ("user", "assistant", "user", "assistant"))
    sampled = np.linspace(-1, -2, 5, dtype=np.float32)
    rollout = Rollout(
        0, "q", 0, "hint", np.arange(10, 20, dtype=np.int32), mask, sampled, 1.25, True, False, "equal", 1,
        messages=messages, turns=turns, versions=((1, 2), (2, 3)),
    )  # fmt: skip
    sample = Sample(rollout, 1.25, old_logprobs=sampled - 0.5, entropies=-sampled, advantages=advantages)
    return [Group(Prompt("q", context="hint", baseline="pair"), [sample])]


def test_turns_baseline_and_values_of_tokens_come_back(tmp_path):
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    advantages = np.array([1, 1, 1, -0.5, -0.5], np.float32)
    write_rollouts(tmp_path / "a", rollout_rows(3, two_turns(advantages), tokenizer, TokenPieces(tokenizer)))
    (row,) = read_rollouts(tmp_path / "a")
    assert (row.context, row.baseline) == ("hint", "pair")
    assert (row.turn_starts, row.turn_lengths) == ((2, 7), (3, 2))
    assert (row.turn_rewards, row.turn_feedback) == ((0.25, 1.0), ("No.", ""))
    assert (row.policy_versions, row.policy_tokens) == ((1, 2), (2, 3))
    assert row.advantage == np.float32(0.4)
    data = row.token_data
    np.testing.assert_allclose(data.sampling_logprobs, [-1, -1.25, -1.5, -1.75, -2])
    np.testing.assert_allclose(data.logprobs, [-1.5, -1.75, -2, -2.25, -2.5])
    np.testing.assert_allclose(data.advantages, advantages)


def test_the_reference_answer_is_that_of_the_form_that_was_posed(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"uid": "q", "problem": "1+1", "answer": "2", "variants": {"choice": {"problem": "A) 2", "answer": "A"}}}'
    )
    environment = MathEnv(str(tmp_path / "rows.jsonl"))
    algorithm = SimpleNamespace(environments={Split.TRAIN: SimpleNamespace(unwrapped=environment)})
    (group,) = two_turns(np.ones(5, np.float32))
    groups = [group, replace(group, prompt=group.prompt.in_form("choice"))]
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    rows = rollout_rows(3, groups, tokenizer, answer_to=functools.partial(reference_answer, algorithm))
    write_rollouts(tmp_path / "a", rows)
    assert [row.answer for row in read_rollouts(tmp_path / "a")] == ["2", "A"]


def test_advantages_of_tokens_are_stored_only_where_they_differ(tmp_path):
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    for number, same in enumerate((0.75, np.full(5, 0.75, np.float32))):
        write_rollouts(tmp_path / "a", rollout_rows(3, two_turns(same), tokenizer, TokenPieces(tokenizer)))
        (row,) = read_rollouts(tmp_path / "a")
        assert row.advantage == 0.75 and row.token_data.advantages is None, number


def test_a_step_without_rollouts_is_a_readable_file(tmp_path):
    write_rollouts(tmp_path / "empty.parquet", [])
    assert read_rollouts(tmp_path / "empty.parquet") == []


def test_the_columns_are_those_of_the_design_and_compressed(tmp_path):
    write_rollouts(tmp_path / "a.parquet", [ROW])
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert file.schema_arrow.names == [
        "step", "uid", "group", "context", "prompt", "response", "reward", "advantage", "correct",
        "truncated", "verdict", "tokens", "replayed", "outcome_reward", "ranking_reward", "turns", "turn_lengths",
        "turn_starts", "turn_rewards", "turn_feedback", "turn_correct", "turn_states",
        "policy_versions", "policy_tokens", "baseline", "answer",
        "pieces", "logprobs", "entropies", "sampling_logprobs", "advantages",
    ]  # fmt: skip
    columns = file.metadata.row_group(0)
    assert {columns.column(i).compression for i in range(columns.num_columns)} == {"ZSTD"}


def test_what_is_known_of_each_token_comes_back_to_three_digits(tmp_path):
    logprobs, entropies = np.array([-0.0123, -2.5, -30.0]), np.array([0.1, 1e-4, 11.0])
    turns = ({"role": "user", "content": "1+1?"},)
    rows = [
        replace(ROW, turns=turns, turn_lengths=(1, 2), token_data=TokenData(("a", "", "é"), logprobs, entropies)),
        replace(ROW, token_data=TokenData(("b",), logprobs[:1], None)),
        replace(ROW, token_data=TokenData((), logprobs[:0], entropies[:0])),
        ROW,
    ]
    write_rollouts(tmp_path / "a.parquet", rows)
    back = read_rollouts(tmp_path / "a.parquet")
    assert back == rows
    first, second, empty, none = (row.token_data for row in back)
    assert first.pieces == ("a", "", "é")
    np.testing.assert_allclose(first.logprobs, logprobs, rtol=1e-3)
    np.testing.assert_allclose(first.entropies, entropies, rtol=1e-3)
    assert second.entropies is None and empty.pieces == () and none is None


def test_a_file_of_an_older_version_opens_without_what_it_lacks(tmp_path):
    write_rollouts(tmp_path / "new.parquet", [ROW])
    table = pq.read_table(tmp_path / "new.parquet")
    pq.write_table(table.select(table.column_names[:13]), tmp_path / "old.parquet")
    assert read_rollouts(tmp_path / "old.parquet") == [ROW]


def test_some_groups_are_read_without_the_others(tmp_path):
    rows = [replace(ROW, group=group, tokens=tokens) for group, tokens in ((0, 3), (0, 4), (1, 5), (2, 6))]
    write_rollouts(tmp_path / "a.parquet", rows)
    assert read_group_lengths(tmp_path / "a.parquet") == {0: [3, 4], 1: [5], 2: [6]}
    assert read_rollouts(tmp_path / "a.parquet", [0, 2]) == [rows[0], rows[1], rows[3]]


@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_survives(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("rollouts") / "a.parquet"
    write_rollouts(path, [replace(ROW, response=text)])
    assert read_rollouts(path)[0].response == text


def test_text_that_is_no_unicode_does_not_stop_a_run(tmp_path):
    turns = ({"role": "user", "content": "c\ud800"},)
    write_rollouts(tmp_path / "a.parquet", [replace(ROW, response="a\ud800b", turns=turns)])
    (row,) = read_rollouts(tmp_path / "a.parquet")
    assert row.response == "a?b" and row.turns == ({"role": "user", "content": "c?"},)


def test_a_second_write_replaces_the_first(tmp_path):
    write_rollouts(tmp_path / "a.parquet", [ROW, ROW])
    write_rollouts(tmp_path / "a.parquet", [ROW])
    assert len(read_rollouts(tmp_path / "a.parquet")) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
