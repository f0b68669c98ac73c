"""Files of a run that are not what was written: each is one line and exit code 2, and nothing is changed."""

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from algorithms.config.files import read_sections
from algorithms.evaluate import main as evaluate
from algorithms.export import main as export
from algorithms.report import main as report
from algorithms.train import manifest
from algorithms.train.manifest import MANIFEST
from algorithms.train.rebuild import main as rebuild
from algorithms.train.rollout_files import write_rollouts
from algorithms.train.run_directory import RunDirectory
from tests.report.runs import row
from tests.runs.stand_in import content

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(10 * [f'*{old}'])}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
UNREADABLE = Path("/proc/self/mem")  # it is opened, and gives EIO when it is read


def half(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def zeroed(file):
    file.write_bytes(bytes(file.stat().st_size))


def gone(file):
    file.unlink()


def unreadable(file):
    file.unlink()
    file.symlink_to(UNREADABLE)


def endless(file):
    file.unlink()
    file.symlink_to("/dev/zero")


def to(text):
    return lambda file: file.write_bytes(text)


FAULTS = {
    "config half": ("config.yaml", half, "bytes instead of"),
    "config empty": ("config.yaml", to(b""), "has 0 bytes instead of"),
    "config not UTF-8": ("config.yaml", to(b"run: {name: \xff}\n"), "bytes instead of"),
    "config a bomb": ("config.yaml", to(BOMB.encode()), "bytes instead of"),
    "config no mapping": ("config.yaml", to(b"[1, 2]\n"), "bytes instead of"),
    "config unreadable": ("config.yaml", unreadable, ""),
    "metrics half": ("metrics.jsonl", half, "bytes instead of at least"),
    "metrics zeroed": ("metrics.jsonl", zeroed, "has changed since it was written"),
    "metrics gone": ("metrics.jsonl", gone, "is missing"),
    "metrics unreadable": ("metrics.jsonl", unreadable, ""),
    "evaluation gone": ("evaluation.json", gone, "is missing"),
    "summary half": ("summary.json", half, "bytes instead of"),
    "manifest half": (MANIFEST, half, "cannot be read"),
    "manifest without end": (MANIFEST, endless, "cannot be read"),
    "manifest of infinities": (MANIFEST, to(b'{"files": {}, "commits": [{"step": 1e999}]}'), "cannot be read"),
}


@pytest.fixture
def harmed(run, request):
    name, harm, said = FAULTS[request.param]
    harm(run.path / name)
    return run, name, said


@pytest.mark.parametrize("harmed", [*FAULTS], indirect=True)
def test_no_reader_believes_a_file_that_is_not_what_was_written(harmed, command, tmp_path, capsys):
    run, name, said = harmed
    before, out = content(run), tmp_path / "out"
    code, line = command("--resume", str(run.path), "run.steps=4")
    readers = {
        "evaluate": lambda: evaluate(["--model", str(run.path), "--data", "embedded:heldout", "--out", str(out)]),
        "report": lambda: report([str(run.path), "--out", str(out)]),
        "export": lambda: export([str(run.path), str(out)]),
    }
    lines = {"resume": (code, [line])}
    for reader, read in readers.items():
        code = read()
        lines[reader] = code, capsys.readouterr().err.splitlines()
    for reader, (code, printed) in lines.items():
        assert code == 2 and len(printed) == 1, (reader, printed)
        assert printed[0].startswith(f"error: {run.path / name}") and said in printed[0], reader
        assert "; fix: " in printed[0]
    assert content(run) == before
    assert not out.exists()


def test_a_manifest_that_is_gone_stops_a_resume_and_is_told_to_all_others(run, command, capsys, caplog, tmp_path):
    (run.path / MANIFEST).unlink()
    code, said = command("--resume", str(run.path))
    assert code == 2 and said.startswith(f"error: {run.path / MANIFEST}: is missing; fix: ")
    assert report([str(run.path), "--out", str(tmp_path / "page.html")]) == 0
    assert f"{MANIFEST}: is missing, so that nothing there is verified" in caplog.text
    assert rebuild([str(run.path)]) == 0
    assert command("--resume", str(run.path))[0] == 0


def test_rows_that_are_lost_leave_the_checkpoints_before_them(run, command):
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(b"".join(lines[:2]))
    code, said = command("--resume", str(run.path))
    older = run.checkpoints_folder / "step_000002"
    assert code == 2 and f"--resume {older}, or take the files as they are: " in said
    assert command("--resume", str(older))[0] == 0
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    assert manifest.fault(run.path) is None


def test_files_that_were_changed_on_purpose_are_taken_by_the_command_that_the_line_names(run, command):
    half(run.metrics_file)
    code, said = command("--resume", str(run.path))
    assert code == 2 and said.endswith(f"python -m algorithms.train.rebuild {run.path}")
    assert rebuild([str(run.path)]) == 0
    assert command("--resume", str(run.path), "run.steps=4")[0] == 0


def test_a_rebuild_of_rows_that_cannot_be_read_changes_nothing(run, capsys):
    run.metrics_file.write_text("{}\n" + run.metrics_file.read_text())
    before = content(run)
    assert rebuild([str(run.path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {run.metrics_file}, line 1: ")
    assert content(run) == before


def test_the_state_of_the_newest_checkpoint_is_missed_by_every_reader(run, capsys, tmp_path, command):
    newest = run.checkpoints_folder / "step_000003"
    (newest / "state.json").unlink()
    assert "state.json is missing" in command("--resume", str(run.path))[1]
    assert export([str(run.path), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said == f"error: {newest}: the checkpoint is damaged, state.json is missing; fix: --step 2\n"
    assert evaluate(["--model", str(run.path), "--data", "embedded:heldout"]) == 2
    assert "state.json is missing" in capsys.readouterr().err


def test_a_run_whose_checkpoints_are_all_gone_does_not_start_again_over_its_rows(run, command):
    shutil.rmtree(run.checkpoints_folder)
    run.checkpoints_folder.mkdir()
    code, said = command("--resume", str(run.path))
    assert code == 2 and said.startswith(
        f"error: {run.checkpoints_folder}: holds no checkpoint, and those of the steps"
    )
    assert len(run.read_metrics()) == 3


# -- What is no fault --------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(command, algorithm, tmp_path):
    """A run of which a file of each kind was copied at every step: gives the copies, by the step, and the whole."""
    copies = []

    def copy():
        copies.append({path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()})

    algorithm.seen = copy
    small = ["run.steps=3", "run.checkpoint_every=1", "run.save_rollouts=false", "run.log_conversations=0"]
    assert command(f"run.dir={tmp_path}", "run.name=run", *small)[0] == 0
    algorithm.seen = lambda: None
    return RunDirectory.open(tmp_path / "run"), copies


def test_a_copy_that_was_made_while_the_run_went_on_resumes(stopped, command):
    """Its manifest is older than its rows and checkpoints, or newer."""
    run, copies = stopped
    older = next(copy for copy in copies if run.checkpoints_folder / "step_000002" / "state.json" in copy)
    run.summary_file.unlink()
    (run.path / MANIFEST).write_bytes(older[run.path / MANIFEST])
    run.evaluation_file.write_bytes(older[run.evaluation_file])
    assert command("--resume", str(run.path), "run.steps=4")[0] == 0
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3, 4]


def test_a_copy_whose_rows_are_older_than_its_checkpoint_names_the_one_that_fits(stopped, command):
    run, copies = stopped
    older = next(copy for copy in copies if run.checkpoints_folder / "step_000002" / "state.json" in copy)
    for file in (run.path / MANIFEST, run.metrics_file, run.evaluation_file):
        file.write_bytes(older[file])
    run.summary_file.unlink()
    code, said = command("--resume", str(run.path))
    assert code == 2
    assert said.endswith(f"has 2 of 3 steps; fix: --resume {run.checkpoints_folder / 'step_000002'}")


def test_a_run_is_reported_while_it_trains_and_with_a_torn_last_line(run, tmp_path):
    with run.metrics_file.open("a") as file:
        file.write('{"step": 4, "reward/mean": 0.5}\n{"step": 5, "rew')
    assert report([str(run.path), "--out", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize("written", [True, False])
def test_a_kill_between_the_manifest_and_the_file_leaves_a_run_that_fits(run, written):
    with pytest.raises(ZeroDivisionError), manifest.replacing(run.path, "evaluation.json", b"{}"):
        if written:
            run.evaluation_file.write_bytes(b"{}")
        raise ZeroDivisionError
    assert manifest.fault(run.path) is None


def test_a_file_that_changes_while_it_is_compared_is_compared_again(run, monkeypatch):
    compared = manifest._fault

    def slow(folder, stored, step):
        if not run.read_evaluation().get("late"):
            run.write_evaluation({"late": {}, "wall_s": 1.0} | run.read_evaluation() | {"late": {"step": 1}})
        return compared(folder, stored, step)

    monkeypatch.setattr(manifest, "_fault", slow)
    assert manifest.fault(run.path) is None


def test_values_that_are_added_to_the_row_of_a_checkpoint_still_fit_it(run):
    run.add_to_last_metrics({"eval/pass@1": 0.5})
    assert manifest.fault(run.path) is None and manifest.fault(run.path, 2) is None


def test_a_checkpoint_hashes_only_what_is_new_and_keeps_what_was_written(run):
    step = run.read_metrics()[-1]["step"]
    run.append_metrics({"step": step + 1, "reward/mean": 0.5})
    run.commit(step + 1)
    run.append_metrics({"step": step + 2, "reward/mean": 0.5})
    run.add_to_last_metrics({"eval/pass@1": 0.5})
    run.append_metrics({"step": step + 3, "reward/mean": 0.5})
    run.commit(step + 3)
    assert manifest.fault(run.path, step + 3) is None
    content = run.metrics_file.read_bytes()
    run.metrics_file.write_bytes(content.replace(b"0.5", b"0.7", 1))
    run.append_metrics({"step": step + 4, "reward/mean": 0.5})
    run.commit(step + 4)
    assert manifest.fault(run.path, step + 4) == ("metrics.jsonl", "has changed since it was written")


def test_a_bit_of_the_rollouts_that_flips_is_one_line_of_the_report(run, capsys, tmp_path):
    file = run.rollout_file(1)
    letters = random.Random(0).choices([chr(code) for code in range(33, 127)], k=20_000)
    write_rollouts(file, [row(response="".join(letters))])
    chunk = next(
        chunk
        for chunk in map(pq.read_metadata(file).row_group(0).column, range(pq.read_metadata(file).num_columns))
        if chunk.path_in_schema == "response"
    )
    place = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert report([str(run.path), "--out", str(tmp_path / "page.html")]) == 2
    assert "step-000001.parquet: cannot be read" in capsys.readouterr().err


# -- Places and leftovers ----------------------------------------------------------------------------------------------


def test_temporary_files_that_a_kill_left_go_with_the_next_resume(run, command):
    rest = run.path / ".metrics.jsonl.123.tmp"
    rest.write_text("{")
    assert command("--resume", str(run.path))[0] == 0
    assert not rest.exists()


def test_folders_that_never_became_a_run_go_with_the_next_one(tmp_path):
    old, young = tmp_path / f".{12 * 'a'}.tmp", tmp_path / f".{12 * 'b'}.tmp"
    for folder in (old, young):
        (folder / "rollouts").mkdir(parents=True)
    an_hour_ago = time.time() - 3700
    os.utime(old, (an_hour_ago, an_hour_ago))
    RunDirectory.create(tmp_path, "run", "algorithm: grpo\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "run"]


def test_a_path_too_long_for_the_history_is_one_line_before_the_model_is_looked_for(command, tmp_path):
    code, said = command(f"run.dir={tmp_path / ('x' * 200) / ('y' * 200) / ('z' * 100)}", "rl_module.model=nowhere")
    assert code == 2 and said.startswith("error: run.dir: with run.name") and "SQLite opens 500 at most" in said


def read_only(folder):
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount: {mounted.stderr.strip()}")
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)


def test_a_run_that_can_only_be_read_is_one_line(run, command, tmp_path):
    read_only(run.path)
    try:
        code, said = command("--resume", str(run.path))
        assert code == 2 and said.startswith(f"error: {run.path}: cannot be used (it may not be read or written); fix:")
        code, said = command(f"run.dir={run.path}", "run.name=another", "rl_module.model=nowhere")
        assert code == 2 and said.startswith("error: run.dir: ") and "cannot be written" in said
    finally:
        subprocess.run(["umount", "-l", run.path], check=True)


@pytest.mark.parametrize(("mode", "rights"), [([], 0o700), (["run.mode=0750"], 0o750), (["run.mode=755"], 0o755)])
def test_a_run_directory_is_the_users_own_unless_another_mode_is_set(command, tmp_path, mode, rights):
    small = ["run.steps=1", "run.save_rollouts=false", "run.log_conversations=0"]
    assert command(f"run.dir={tmp_path}", "run.name=run", *small, *mode)[0] == 0
    assert (tmp_path / "run").stat().st_mode & 0o777 == rights


def test_a_mode_that_locks_the_user_out_is_refused(command, tmp_path):
    code, said = command(f"run.dir={tmp_path}", "run.mode=0077")
    assert code == 2 and said.startswith("error: run.mode: '0077' is not an octal mode")


# -- Secrets -----------------------------------------------------------------------------------------------------------

SECRET = "sesame-opens-it"
SMALL = ["run.steps=1", "run.save_rollouts=false", "run.log_conversations=0"]


@pytest.fixture
def with_secrets(command, tmp_path, monkeypatch):
    """A run whose file and command line read an environment variable; its name says nothing of a secret."""
    monkeypatch.setenv("JUDGE", SECRET)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "environment: {instruction: 'Ask ${oc.env:JUDGE} at ${run.name}', system: '${.instruction}'}\n"
        "run: {name: run}\nenv_runners: {vllm: {headers: ['${environment.instruction}']}}\n"
    )
    override = "env_runners.vllm.key=${oc.env:JUDGE}"
    code, said = command(
        "--config", str(file), override, f"run.dir={tmp_path}", "env_runners.max_response_tokens=64", *SMALL
    )
    assert code == 0, said
    return RunDirectory.open(tmp_path / "run")


def test_the_value_of_an_environment_variable_is_nowhere_in_the_run_nor_in_its_report(with_secrets, tmp_path):
    run = with_secrets
    page = tmp_path / "page.html"
    assert report([str(run.path), "--out", str(page)]) == 0
    holding = [path for path, text in (content(run) | {page: page.read_bytes()}).items() if SECRET.encode() in text]
    assert holding == []
    settings = read_sections(run.config_file)
    assert settings["environment"]["instruction"] == settings["environment"]["system"] == f"Ask {SECRET} at run"
    assert settings["env_runners"]["vllm"] == {"headers": [f"Ask {SECRET} at run"], "key": SECRET}


def test_a_resume_reads_the_variable_again_and_keeps_the_reference(with_secrets, command, monkeypatch):
    run = with_secrets
    before = run.config_file.read_bytes()
    assert command("--resume", str(run.path))[0] == 0
    assert run.config_file.read_bytes() == before
    monkeypatch.delenv("JUDGE")
    code, said = command("--resume", str(run.path))
    assert code == 2 and said.startswith(f"error: {run.config_file}: ") and "'JUDGE' not found" in said
