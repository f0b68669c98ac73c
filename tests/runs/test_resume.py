"""What a resume does to a run's folder; a stand-in plays the algorithm, the rest is the script's own."""

import json
import shutil
import sqlite3

import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from algorithms.history.database import FORMAT, HistoryDatabase
from algorithms.train.rebuild import rebuild
from algorithms.train.run_directory import RunDirectory
from algorithms.train.stored_run import StoredRun, reading_history
from algorithms.utils.errors import CheckpointError
from tests.runs.stand_in import content


def whole_events(run):
    events = EventAccumulator(str(run.path), {SCALARS: 0})
    events.Reload()
    return [(event.step, round(event.value, 3)) for event in events.Scalars("eval/pass@1")]


# -- One process at a time ---------------------------------------------------------------------------------------------


def test_nobody_chooses_a_checkpoint_while_another_process_may_still_write_one(run, command):
    (run.checkpoints_folder / "step_000003" / "state.json").unlink()  # choosing it would complain
    with run.locked():
        code, said = command("--resume", str(run.path))
        assert code == 2 and "trains here" in said
        assert command("--resume", str(run.path), "--check")[1].endswith(f"--resume {run.path}/checkpoints/step_000002")
    assert "damaged" in command("--resume", str(run.path))[1]


def test_the_lock_is_held_from_the_choice_on_and_goes_however_the_run_ends(run):
    with pytest.raises(ZeroDivisionError), StoredRun.open(run.path, "grpo") as stored:
        assert stored.checkpoint.name == "step_000003"
        with pytest.raises(CheckpointError, match="trains here"), run.locked():
            pytest.fail("two hold the lock")
        raise ZeroDivisionError
    with StoredRun.open(run.path, "grpo", to_train=False):
        with run.locked():
            pass


# -- What the run started from -----------------------------------------------------------------------------------------


def test_a_run_that_has_started_starts_from_nothing_else(run, command):
    before = run.config_file.read_text()
    for given in ("run.start_from=/runs/first", "run.start_with=[optimizer]"):
        code, said = command("--resume", str(run.path), given)
        assert code == 2 and said.startswith(f"error: {given.partition('=')[0]}: {run.path} has started, and goes on")
    assert run.config_file.read_text() == before


def test_what_a_run_started_from_may_be_named_again(run, command):
    source = "/runs/first/checkpoints/step_000002"
    run.write_config(run.config_file.read_text().replace("start_from: null", f"start_from: {source}"))
    for given in ("run.start_from=/runs/first", f"run.start_from={source}"):
        code, said = command("--resume", str(run.path), given)
        assert code == 0, said
        assert f"start_from: {source}\n" in run.config_file.read_text()


def test_a_run_without_a_checkpoint_may_start_from_another_place(run, command):
    for checkpoint in run.checkpoints_folder.iterdir():
        shutil.rmtree(checkpoint)
    run.truncate_after(0)
    code, said = command("--resume", str(run.path), "run.start_from=/runs/moved")
    assert code == 2 and said.startswith("error: run.start_from: /runs/moved is no run, checkpoint or adapter")
    run.write_config(run.config_file.read_text().replace("start_from: null", "start_from: /runs/gone"))
    code, said = command("--resume", str(run.path))
    assert code == 2 and said.startswith("error: run.start_from: /runs/gone is no run, checkpoint or adapter")


# -- Damaged files -----------------------------------------------------------------------------------------------------


def in_the_middle(run):
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text("".join([lines[0], '{"step": 2, "rew\n', lines[2]]))
    return run.metrics_file


def evaluation_cut_off(run):
    run.evaluation_file.write_bytes(run.evaluation_file.read_bytes()[:40])
    return run.evaluation_file


def evaluation_of_another_kind(run):
    run.evaluation_file.write_text('{"before": [1]}')
    return run.evaluation_file


def history_of_another_format(run):
    with sqlite3.connect(run.history_file) as database:
        database.execute(f"PRAGMA user_version={FORMAT + 1}")
    database.close()
    return run.history_file


def history_that_is_none(run):
    run.history_file.write_bytes(b"nonsense" * 5000)
    return run.history_file


def history_with_a_rotten_page(run):
    database = HistoryDatabase(run.history_file)
    for number in range(20_000):
        database.record(f"{number}", True, 1.0)
    database.close()
    database = sqlite3.connect(run.history_file)
    ((page,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name='pools'")
    database.close()
    with run.history_file.open("r+b") as file:
        file.seek((page - 1) * 16384)
        file.write(b"\xff" * 16384)
    return run.history_file


@pytest.mark.parametrize(
    "harm",
    [
        in_the_middle,
        evaluation_cut_off,
        evaluation_of_another_kind,
        history_of_another_format,
        history_that_is_none,
        history_with_a_rotten_page,
    ],
)
def test_a_damaged_file_is_named_in_one_line_before_anything_is_changed(run, command, harm):
    file = harm(run)
    before = content(run)
    code, said = command("--resume", str(run.checkpoints_folder / "step_000001"))
    assert code == 2
    assert said.startswith(f"error: {file}") and "; fix: " in said
    assert content(run) == before


def test_a_page_that_is_found_rotten_while_going_back_is_too(run, command, monkeypatch):
    def rotten(self, mark):
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr(HistoryDatabase, "rollback", rotten)
    before = content(run)
    code, said = command("--resume", str(run.path), "run.steps=4")
    assert code == 2 and said.startswith(f"error: {run.history_file}: ") and "malformed" in said
    assert content(run) == before


def sqlite_error(code):
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


def test_a_history_that_cannot_be_written_is_sound_and_nobody_is_told_to_start_again(run, command, monkeypatch):
    def full(self, mark):
        raise sqlite_error(sqlite3.SQLITE_IOERR_FSYNC)

    monkeypatch.setattr(HistoryDatabase, "rollback", full)
    code, said = command("--resume", str(run.path), "run.steps=4")
    assert code == 1 and said.startswith("error: the history cannot be written (disk I/O error); ")
    assert said.endswith("resume with --resume") and "start again" not in said


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY])
def test_neither_is_one_that_is_out_of_reach(run, code):
    with pytest.raises(CheckpointError, match="readable and writable") as raised, reading_history(run):
        raise sqlite_error(code)
    assert "start again" not in str(raised.value)


def test_a_disk_that_is_full_is_no_damage(run):
    full = sqlite3.connect(":memory:")
    full.execute("PRAGMA max_page_count=1")
    with pytest.raises(sqlite3.OperationalError, match="full"), reading_history(run):
        full.execute("CREATE TABLE t (x)")
    with pytest.raises(CheckpointError), reading_history(run):
        full.execute("SELECT * FROM t")


@pytest.mark.parametrize("line", ['{"step": 4, "rew', '{"step": 4, "rew\0\0\0\0\0\0\0\0e/b": 1}\n', "\0\0\0\0\0\0"])
def test_a_line_that_a_kill_or_a_power_failure_left_in_parts_is_mended_in_silence(run, command, line):
    with run.metrics_file.open("a") as file:
        file.write(line)
    assert command("--resume", str(run.path), "run.steps=4")[0] == 0
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3, 4]


# -- What a kill left --------------------------------------------------------------------------------------------------


def test_a_half_written_checkpoint_of_a_step_that_is_never_saved_again_goes(run, command):
    for rest in (".step_000002.partial", ".step_000001.deleted"):
        (run.checkpoints_folder / rest).mkdir()
    assert command("--resume", str(run.path))[0] == 0
    assert not list(run.checkpoints_folder.glob(".*"))


# -- An end that is not the run's any more -----------------------------------------------------------------------------


@pytest.mark.parametrize(("checkpoint", "steps"), [("", 4), ("checkpoints/step_000001", 3)], ids=["more", "again"])
def test_while_other_steps_are_made_nothing_says_that_the_run_is_finished(run, command, algorithm, checkpoint, steps):
    seen = []
    algorithm.seen = lambda: seen.append(
        (run.summary_file.exists(), run.curves_file.exists(), "after" in run.read_evaluation())
    )
    assert command("--resume", str(run.path / checkpoint), f"run.steps={steps}")[0] == 0
    assert set(seen) == {(False, False, False)}
    assert json.loads(run.summary_file.read_text())["steps"] == steps
    assert run.read_evaluation()["after"]["step"] == steps


def test_a_run_cut_back_to_fewer_steps_says_nothing_of_the_others(run, command, algorithm):
    algorithm.seen = lambda: pytest.fail("stale") if run.summary_file.exists() else None
    assert command("--resume", str(run.checkpoints_folder / "step_000002"), "run.steps=2")[0] == 0
    assert json.loads(run.summary_file.read_text())["steps"] == 2


def test_a_finished_run_with_nothing_left_to_do_keeps_its_end(run, command, algorithm):
    algorithm.seen = lambda: None if run.summary_file.exists() and run.curves_file.exists() else pytest.fail("gone")
    assert command("--resume", str(run.path))[0] == 0
    assert run.read_evaluation().keys() == {"before", "after", "wall_s"}


# -- An evaluation before training that is another measurement ---------------------------------------------------------


def test_after_steps_it_is_kept_and_compared_with_nothing_now_and_later(run, command, caplog):
    before = run.read_evaluation()["before"]
    assert command("--resume", str(run.path), "run.steps=4", "evaluation.samples=9")[0] == 0
    (warning,) = caplog.messages
    assert "was made with other settings (evaluation.samples)" in warning
    assert command("--resume", str(run.path), "run.steps=5")[0] == 0
    assert json.loads(run.summary_file.read_text())["eval"] == {"before": {}, "after": {"pass@1": 0.25}}
    assert run.read_evaluation()["before_with_other_settings"] == before
    assert len(caplog.messages) == 1


def test_before_the_first_step_it_is_made_again(tmp_path, command, algorithm):
    def killed():
        if algorithm.evaluated:
            raise ZeroDivisionError
        algorithm.evaluated = True

    algorithm.evaluated, algorithm.seen = False, killed
    with pytest.raises(ZeroDivisionError):
        command(f"run.dir={tmp_path}", "run.name=run", "run.steps=1", "run.save_rollouts=false")
    run = RunDirectory.open(tmp_path / "run")
    assert run.read_evaluation()["before"]["metrics"] == {"pass@1": 0.25}
    algorithm.accuracy, algorithm.seen = 0.5, lambda: None
    assert command("--resume", str(run.path), "environment.instruction=Think!")[0] == 0
    assert json.loads(run.summary_file.read_text())["eval"]["before"] == {"pass@1": 0.5}
    assert whole_events(run) == [(0, 0.5), (1, 0.5)]


def test_one_that_is_gone_for_good_is_not_made_up_from_a_trained_model(run, command):
    run.evaluation_file.unlink()
    assert command("--resume", str(run.path), "run.steps=4")[1].startswith(f"error: {run.evaluation_file}: is missing")
    rebuild(run.path)
    assert command("--resume", str(run.path), "run.steps=4")[0] == 0
    assert run.read_evaluation().keys() == {"after", "wall_s"}


def test_how_earlier_turns_are_kept_stays_as_the_history_has_them(run, command):
    before = content(run)
    code, said = command("--resume", str(run.path), "run.steps=4", "rl_module.earlier_turns=rendered")
    assert code == 2
    assert said == (
        "error: rl_module.earlier_turns: the run's history holds turns of 'sampled', which no other value can read; "
        "fix: rl_module.earlier_turns=sampled, or a new run"
    )
    assert content(run) == before
