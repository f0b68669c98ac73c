"""`run.dir` as a URI: what is copied, when, and what another machine makes of it."""

import json
import shutil

import pytest

from algorithms.config.errors import ConfigError
from algorithms.history.store import ReplayHistory
from algorithms.train import mirror
from algorithms.train.manifest import damage
from algorithms.train.mirror import Mirror
from algorithms.train.record import check_record
from algorithms.train.run_directory import RunDirectory
from algorithms.train.storage import Storage, fetch_run
from algorithms.utils.errors import CheckpointError

SMALL = ["run.checkpoint_every=1", "run.save_rollouts=false", "run.log_conversations=0", "run.name=run"]


@pytest.fixture
def bucket(tmp_path):
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def copied(command, bucket, tmp_path):
    """A run of three steps that was copied."""
    arguments = [f"run.dir={bucket}", f"run.local_dir={tmp_path / 'here'}", "run.steps=3", *SMALL]
    assert command(*arguments)[0] == 0
    return RunDirectory.open(tmp_path / "here/run")


def files(folder):
    """Names and contents, without locks and the history, whose copy has another name."""
    found = (path for path in folder.rglob("*") if path.is_file())
    kept = (path for path in found if not path.name.startswith((".", "history")) and path.suffix != ".sqlite")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def steps(run):
    return [row["step"] for row in run.read_metrics()]


def test_the_copy_is_the_run_directory(copied, tmp_path):
    there = tmp_path / "bucket/run"
    assert files(there) == files(copied.path)
    assert [path.name for path in (there / "history").iterdir()] == ["step_000003.sqlite"]
    assert not (copied.path / ".mirror").exists()


def test_another_machine_resumes_it_and_this_one_after_it(copied, command, bucket, tmp_path):
    far, near = f"run.local_dir={tmp_path / 'far'}", f"run.local_dir={tmp_path / 'here'}"
    code, said = command("--resume", f"{bucket}/run", far, "run.steps=5", "run.keep_checkpoints=2")
    assert code == 0, said
    assert steps(RunDirectory(tmp_path / "far/run")) == [1, 2, 3, 4, 5] == steps(RunDirectory(tmp_path / "bucket/run"))
    assert len(list((tmp_path / "bucket/run/checkpoints").glob("step_*/manifest.json"))) == 2
    assert command("--resume", f"{bucket}/run", near, "run.steps=6")[0] == 0
    assert steps(copied) == [1, 2, 3, 4, 5, 6]
    assert steps(RunDirectory(tmp_path / "here/run.older")) == [1, 2, 3]


def test_continue_finds_the_run_in_the_storage(copied, command, bucket, tmp_path):
    arguments = [f"run.dir={bucket}", "run.name=run", f"run.local_dir={tmp_path / 'far'}"]
    assert command("--continue", *arguments)[0] == 0
    assert steps(RunDirectory(tmp_path / "far/run")) == [1, 2, 3]


def test_a_name_that_the_storage_has_gets_a_number(copied, command, bucket, tmp_path):
    arguments = [f"run.dir={bucket}", f"run.local_dir={tmp_path / 'far'}", "run.steps=1", *SMALL]
    assert command(*arguments)[0] == 0
    assert steps(RunDirectory(tmp_path / "bucket/run-2")) == [1]


def test_what_is_not_the_run_s_own_stays_there(copied, command, bucket, tmp_path):
    (tmp_path / "bucket/run/report.html").write_text("mine")
    assert command("--resume", str(copied.path), "run.steps=7")[0] == 0
    assert (tmp_path / "bucket/run/report.html").exists()
    kept = sorted(path.name for path in copied.checkpoints_folder.glob("step_*"))
    there = [path.parent.name for path in (tmp_path / "bucket/run/checkpoints").glob("step_*/manifest.json")]
    assert sorted(there) == kept


@pytest.mark.parametrize(
    ("uri", "said"),
    [("s4://bucket", "Unrecognized filesystem type"), ("s3://", "bucket"), ("s3://key:secret@bucket", "credentials")],
)
def test_a_uri_that_cannot_be_read_is_one_line(command, uri, said):
    code, line = command(f"run.dir={uri}", *SMALL)
    assert code == 2 and line.startswith("error: run.dir: ") and said.lower() in line.lower()
    assert "secret" not in line


def test_a_run_that_is_not_there_is_one_line(bucket, tmp_path):
    with pytest.raises(CheckpointError, match="no such run"):
        fetch_run(f"{bucket}/run", tmp_path)


def test_the_uri_of_a_run_keeps_its_query(bucket):
    storage, name = Storage.of_run("s3://bucket/runs/first?endpoint_override=http://localhost:1&region=a")
    assert name == "first"
    assert storage.run("x") == "s3://bucket/runs/x?endpoint_override=http://localhost:1&region=a"


# -- Lost connections and machines -------------------------------------------------------------------------------------


@pytest.fixture
def unreachable(monkeypatch):
    """Makes the storage fail from a number of files on; `None`: it works."""
    left, put = [None], Storage.put

    def fail(self, *arguments):
        if left[0] == 0:
            raise OSError("no route to host")
        left[0] = None if left[0] is None else left[0] - 1
        put(self, *arguments)

    monkeypatch.setattr(Storage, "put", fail)
    monkeypatch.setattr(mirror, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(mirror, "LAST_WAIT_S", 0.0)
    return left


def test_a_run_goes_on_without_its_storage_and_a_resume_sends_all(command, bucket, tmp_path, unreachable, caplog):
    unreachable[0] = 4
    arguments = [f"run.dir={bucket}", f"run.local_dir={tmp_path / 'here'}", "run.steps=3", *SMALL]
    assert command(*arguments)[0] == 0
    assert "cannot be reached (no route to host); the run goes on" in caplog.text
    assert f"fix: --resume {tmp_path / 'here/run'} once it can be reached" in caplog.text
    assert files(tmp_path / "bucket/run") != files(tmp_path / "here/run")
    unreachable[0] = None
    assert command("--resume", str(tmp_path / "here/run"))[0] == 0
    assert files(tmp_path / "bucket/run") == files(tmp_path / "here/run")


def test_a_storage_that_comes_back_gets_all_files(copied, bucket, unreachable, caplog):
    unreachable[0] = 0
    copy = Mirror(copied, Storage((copied.path.parents[1] / "second").as_uri()))
    copy.take()
    while "the run goes on" not in caplog.text:
        copy._thread.join(0.01)
    copy.take()
    unreachable[0] = None
    copy.close()
    assert "has all files again" in caplog.text
    assert files(copied.path.parents[1] / "second/run") == files(copied.path)


def test_a_machine_that_is_lost_in_the_middle_of_a_copy_leaves_a_run_to_resume(tmp_path, unreachable):
    """Wherever the copy of a second checkpoint ends: the first one or the second is whole, and all files fit it."""
    run = RunDirectory.create(tmp_path / "here", "run", "run: {}\n")
    history = ReplayHistory(path=run.history_file)

    def step(number):
        history.record("a", True, 1.0)
        history.commit()
        run.append_metrics({"step": number})
        run.commit(number)
        checkpoint(run, number)
        return history.savepoint()

    marks = {1: step(1)}
    first = Mirror(run, Storage((tmp_path / "first").as_uri()))
    first.take()
    first.close()
    marks[2] = step(2)
    shutil.rmtree(run.checkpoints_folder / "step_000001")
    found = set()
    for sent in range(20):
        place = shutil.copytree(tmp_path / "first", tmp_path / f"cut-{sent}")
        unreachable[0] = sent
        second = Mirror(run, Storage(place.as_uri()), done=1)
        second.take()
        second.close()
        unreachable[0] = None
        fetched = RunDirectory(fetch_run(f"{place.as_uri()}/run", tmp_path / f"far-{sent}"))
        (newest,) = fetched.checkpoints_folder.iterdir()
        assert damage(newest) is None
        number = int(newest.name[-1])
        check_record(fetched, number, unlisted="refuse")
        again = ReplayHistory(path=fetched.history_file)
        again.rollback(marks[number])
        assert again.attempts("a") == number
        again.close()
        found.add(number)
    assert found == {1, 2}
    history.close()


def checkpoint(run, number):
    from algorithms.train.checkpoints import complete_checkpoint

    with complete_checkpoint(run.checkpoints_folder, number) as partial:
        (partial / "model").mkdir(parents=True)
        (partial / "model/weights").write_bytes(bytes([number]) * 100)
        (partial / "state.json").write_text(json.dumps({"step": number}))


def test_an_evaluation_s_configuration_cannot_be_a_uri():
    with pytest.raises(ConfigError, match="fix: a folder"):
        RunDirectory.create("s3://bucket/runs", "run", "")
