from dataclasses import replace

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from algorithms.runs.rollout_files import RolloutRow, read_rollouts, write_rollouts

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


def test_a_step_without_rollouts_is_a_readable_file(tmp_path):
    write_rollouts(tmp_path / "empty.parquet", [])
    assert read_rollouts(tmp_path / "empty.parquet") == []


def test_the_columns_are_those_of_the_design_and_compressed(tmp_path):
    write_rollouts(tmp_path / "a.parquet", [ROW])
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert file.schema_arrow.names == [
        "step", "uid", "group", "context", "prompt", "response", "reward", "advantage", "correct",
        "truncated", "verdict", "tokens", "replayed",
    ]  # fmt: skip
    assert {file.metadata.row_group(0).column(i).compression for i in range(13)} == {"ZSTD"}


@given(text=st.text(max_size=30))
def test_any_text_survives(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("rollouts") / "a.parquet"
    write_rollouts(path, [replace(ROW, response=text)])
    assert read_rollouts(path)[0].response == text


def test_text_that_is_no_unicode_does_not_stop_a_run(tmp_path):
    write_rollouts(tmp_path / "a.parquet", [replace(ROW, response="a\ud800b")])
    assert read_rollouts(tmp_path / "a.parquet")[0].response == "a?b"


def test_a_second_write_replaces_the_first(tmp_path):
    write_rollouts(tmp_path / "a.parquet", [ROW, ROW])
    write_rollouts(tmp_path / "a.parquet", [ROW])
    assert len(read_rollouts(tmp_path / "a.parquet")) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
