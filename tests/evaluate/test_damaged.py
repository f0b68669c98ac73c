"""The files of an evaluation that are not what was written: each is one line and exit code 2."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from algorithms.config.errors import ConfigError
from algorithms.evaluate import main
from algorithms.evaluation.responses import _SCHEMA, ResponseFolder
from algorithms.evaluation.results import CONFIG, FINGERPRINT, SCORES, open_results, stored_part_size

ASKED = ["--model", "embedded:tiny", "--samples", "2", "env_runners.max_response_tokens=4", "evaluation.limit=2"]
COUNTS = {"problems": 12, "samples": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluation") / "whole"
    assert main([*ASKED, "--data", "math=embedded:heldout", "--out", str(out)]) == 0
    return out


def again(out, capsys):
    capsys.readouterr()
    code = main([*ASKED, "--data", "math=embedded:heldout", "--out", str(out)])
    return code, capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "name", ["a flipped bit", "fewer answers", "other answers", "no rows", "another file's", "extra"]
)
def test_a_part_that_is_not_what_was_written_is_refused(name, whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    part = out / "responses" / "part-000000.parquet"
    table = pq.read_table(part)
    if name == "a flipped bit":
        content = bytearray(part.read_bytes())
        content[pq.read_metadata(part).row_group(0).column(5).data_page_offset - 12] ^= 1
        part.write_bytes(content)
    elif name == "fewer answers":
        pq.write_table(table.slice(1), part)
    elif name == "other answers":
        other = table.column("uid").to_pylist()
        pq.write_table(table.set_column(1, "uid", [["another", *other[1:]]]), part)
    elif name == "no rows":
        pq.write_table(table.slice(0, 0), part)
    elif name == "another file's":
        pq.write_table(pa.table({"a": [1, 2, 3, 4]}), part)
    else:
        part = shutil.copy(part, part.with_name("part-000007.parquet"))
    code, line = again(out, capsys)
    assert code == 2 and line.startswith(f"error: {part}: ") and "fix: delete it and evaluate again" in line


def test_whole_parts_are_believed(whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    assert again(out, capsys)[0] == 0
    assert len(ResponseFolder(out / "responses").read()) == 4 and pq.read_schema(
        out / "responses" / "part-000000.parquet"
    ).equals(_SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "1",
        "[" * 100_000,
        "{}",
        '{"benchmarks": [1]}',
        '{"benchmarks": {"math": 1}}',
        '{"benchmarks": {"math": {}}}',
    ],
    ids=["empty", "list", "number", "deep", "nothing", "benchmarks", "benchmark", "digest"],
)
def test_a_fingerprint_of_another_form_is_refused(text, whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    (out / FINGERPRINT).write_text(text)
    code, line = again(out, capsys)
    assert code == 2 and str(out) in line and "does not name the problems" in line


@pytest.mark.parametrize("size", ["x", 0, -3, 1.5, None, True, float("inf")])
def test_a_size_of_parts_that_is_none_is_refused(size, tmp_path):
    (tmp_path / CONFIG).write_text("run: {seed: 0}\n")
    (tmp_path / FINGERPRINT).write_text(json.dumps({"benchmarks": {}, "part_size": size}))
    with pytest.raises(ConfigError, match="does not name the size of a part"):
        stored_part_size(tmp_path)


@pytest.mark.parametrize("name", [CONFIG, FINGERPRINT])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    (tmp_path / CONFIG).write_text("run: {seed: 0}\n")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match="not a file"):
        open_results(tmp_path, "run: {seed: 0}\n", {"benchmarks": {}, "model": None}, complete=True)


def test_settings_of_another_form_are_refused(whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    (out / CONFIG).write_text("training: [1]\n")
    code, line = again(out, capsys)
    assert code == 2 and line.startswith(f"error: {out / CONFIG}: holds no settings")


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"math": 1}',
        "[" * 100_000,
        json.dumps({"math": {**COUNTS, "scores": {}, "levels": {}, "by_problem": [1]}}),
        json.dumps({"math": {**COUNTS, "scores": {}, "levels": {}, "by_problem": {"1": 3}}}),
        json.dumps({"math": {**COUNTS, "scores": {}, "levels": {}, "by_problem": {"1": {"pass@1": "x"}}}}),
        json.dumps({"math": {**COUNTS, "scores": {}, "levels": {}, "by_problem": {"1": {"pass@1": 1}, "2": {}}}}),
        json.dumps({"math": {**COUNTS, "scores": {"pass@1": {"mean": "x"}}, "levels": {}, "by_problem": {}}}),
        json.dumps({"math": {**COUNTS, "problems": 0, "scores": {}, "levels": {}, "by_problem": {}}}),
    ],
    ids=["list", "number", "deep", "problems", "problem", "text", "measures", "score", "none"],
)
def test_scores_of_another_form_are_not_compared(text, whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    (out / SCORES).write_text(text)
    assert main(["--compare", str(whole), str(out)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: --compare: {out} holds no finished evaluation (")
