"""`run.copy_to`: what is copied, when it counts, and what another machine makes of it. The S3 client is pyarrow's."""

import json
import os
import shutil
import time

import pytest

from algorithms.config.errors import ServiceError
from algorithms.train.copies import Copies
from algorithms.train.remote_copy import Place, fetch
from algorithms.train.run_directory import RunDirectory, next_folder
from algorithms.utils.errors import CheckpointError

SMALL = ["run.checkpoint_every=1", "run.save_rollouts=false", "run.log_conversations=0", "run.trackers=[]"]


@pytest.fixture
def begin(command, tmp_path):
    """Begins or continues a run that is copied; gives the exit code and the last line."""

    def run(copy_to, where="here", *more):
        return command(f"run.dir={tmp_path / where}", f"run.copy_to={copy_to}", "run.name=run", *SMALL, *more)

    return run


@pytest.fixture
def bucket(tmp_path):
    return (tmp_path / "bucket").as_uri()


def files(folder):
    """Names and contents of what a copy holds, but the history, whose bytes are SQLite's own."""
    found = (path for path in folder.rglob("*") if path.is_file())
    kept = (path for path in found if not path.name.startswith((".", "history")) and path.suffix != ".png")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def steps(folder):
    return [row["step"] for row in RunDirectory(folder).read_metrics()]


# -- A server that goes away and comes back ----------------------------------------------------------------------------


def test_a_run_outlives_its_storage_and_its_machine(command, begin, server, tmp_path, caplog):
    here, far, uri = tmp_path / "here", tmp_path / "far", server.of_run("run")
    assert begin(server.uri, "here", "run.steps=2", "run.mode='0750'")[0] == 0
    fetched = fetch(uri, tmp_path / "first")
    assert files(fetched) == files(here / "run")
    assert fetched.stat().st_mode & 0o777 == 0o750
    assert not list((here / "run").glob(".copying"))

    server.requests = 0
    assert command("--resume", str(here / "run"), "run.steps=3")[0] == 0
    assert caplog.text.count("the run goes on") == 1 and f"fix: --resume {here / 'run'}, which copies" in caplog.text
    server.requests = -1
    server.stop()
    code, said = command("--resume", uri, f"run.dir={far}")
    assert code == 2 and "cannot be used" in said and not far.exists()

    server.start()
    assert command("--resume", str(here / "run"))[0] == 0
    shutil.rmtree(here / "run")
    assert command("--resume", uri, f"run.dir={far}", "run.steps=4")[0] == 0
    assert steps(far / "run") == [1, 2, 3, 4]
    assert len([key for key in server.objects if key.endswith("metrics.jsonl")]) == 1


def test_wherever_a_copy_ends_a_whole_one_stands(begin, server, tmp_path):
    assert begin(server.uri, "here", "run.steps=1")[0] == 0
    run, before = RunDirectory(tmp_path / "here/run"), dict(server.objects)
    assert begin(server.uri, "there", "run.steps=2", "run.copy_to=null")[0] == 0
    later = RunDirectory(tmp_path / "there/run")
    (later.path / ".copies").write_bytes((run.path / ".copies").read_bytes())
    shutil.rmtree(later.checkpoints_folder / "step_000001")  # which the run did not keep
    found = []
    for answered in range(200):
        server.objects, server.requests = dict(before), answered
        copy = Copies(later, server.uri)
        copy.take()
        copy._thread.join()
        server.requests = -1
        fetched = fetch(server.of_run("run"), tmp_path / f"{answered}")
        found.append(max(steps(fetched)))
        assert found[-1] == int(max(path.name for path in (fetched / "checkpoints").iterdir())[-1])
        if copy._trouble is None:
            break
    assert found[0] == 1 and found[-1] == 2 and found == sorted(found)


# -- Places that hold another copy -------------------------------------------------------------------------------------


def test_another_run_of_the_name_is_refused_and_leaves_nothing(begin, bucket, tmp_path):
    assert begin(bucket, "here", "run.steps=1")[0] == 0
    before = files(tmp_path / "bucket")
    for checked in ("--check", "run.steps=3"):
        code, said = begin(f"{bucket}/", "there", checked)
        assert code == 2 and said.startswith("error: run.copy_to: ") and f"--resume {bucket}/run" in said
    assert next_folder(tmp_path / "here", "run").name == "run-2"  # by which a copy is looked for
    assert files(tmp_path / "bucket") == before and not (tmp_path / "there/run").exists()


def test_a_run_that_another_machine_continued_is_not_copied_over_it(command, begin, bucket, tmp_path, caplog):
    assert begin(bucket, "here", "run.steps=1")[0] == 0
    here, far = tmp_path / "here/run", tmp_path / "far/run"
    assert command("--resume", f"{bucket}/run/", f"run.dir={far.parent}", "run.steps=2")[0] == 0
    code, said = command("--resume", str(here), "run.steps=5")
    assert code == 2 and "as another machine continued it" in said
    code, said = command("--resume", f"{bucket}/run", f"run.dir={here.parent}")
    assert code == 2 and f"{here} is another run" in said and f"--resume {here} run.copy_to=" in said
    assert steps(here) == [1] and steps(fetch(f"{bucket}/run", tmp_path / "third")) == [1, 2]
    copy = Copies(RunDirectory(here), bucket)  # of a process that still trains there
    copy.take()
    copy.finish()
    assert "another machine continued it" in caplog.text and steps(fetch(f"{bucket}/run", far.parent)) == [1, 2]
    assert command("--resume", f"{bucket}/run", f"run.dir={far.parent}", "run.steps=3")[0] == 0  # it knows the copy


def test_continue_fetches_the_run_once(begin, bucket, tmp_path):
    assert begin(bucket, "here", "run.steps=1")[0] == 0
    killed, going = (tmp_path / f"far/.run.{name}.fetched" for name in "ab")
    for folder, age_s in ((killed, 2 * 86400.0), (going, 60.0)):
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age_s,) * 2)
    for _ in range(2):
        assert begin(bucket, "far", "--continue")[0] == 0
    assert steps(tmp_path / "far/run") == [1] and going.exists() and not killed.exists()


# -- What is in the way ------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_stays_behind_and_a_deleted_one_is_sent_again(command, begin, bucket, tmp_path, caplog):
    assert begin(bucket, "here", "run.steps=2", "run.keep_checkpoints=2")[0] == 0
    first, second = sorted((tmp_path / "here/run/checkpoints").iterdir())
    for file in tmp_path.glob("bucket/run/checkpoints/step_000002-*/*"):
        file.unlink()
    damaged = next(path for path in first.rglob("*") if path.is_file() and path.name != "manifest.json")
    damaged.unlink()  # what was copied is a second name of it
    damaged.write_bytes(b"x")
    shutil.rmtree(next(tmp_path.glob("bucket/run/checkpoints/step_000001-*")))
    copy = Copies(RunDirectory(tmp_path / "here/run"), bucket)
    copy.take()
    copy.finish()
    assert f"{damaged.name} has changed since it was written" in caplog.text
    assert files(fetch(f"{bucket}/run", tmp_path / "far") / "checkpoints") == {
        f"{second.name}/{name}": content for name, content in files(second).items()
    }


def test_a_copy_stands_though_nothing_may_be_deleted_there(begin, bucket, tmp_path, caplog, monkeypatch):
    assert begin(bucket, "here", "run.steps=1")[0] == 0
    copy, delete = Copies(RunDirectory(tmp_path / "here/run"), bucket), Place.delete

    class Refusing:
        def delete_dir(self, path):
            raise PermissionError(path)

    def delete_nothing(place, folders):
        monkeypatch.setattr(place, "_files", Refusing())
        return delete(place, folders)

    monkeypatch.setattr(Place, "delete", delete_nothing)
    for _ in range(2):
        copy.take()
        copy._thread.join()
    assert copy._trouble is None and copy._copied == 2
    assert caplog.text.count("what the run has deleted stays there") == 1


def test_a_bucket_that_is_not_there_is_refused_before_the_model_is_loaded(command, server, tmp_path):
    other = server.uri.replace("bucket", "other", 1)
    code, line = command(f"run.dir={tmp_path}", f"run.copy_to={other}", "run.name=run", *SMALL)
    assert code == 2 and line.startswith("error: run.copy_to: ") and "cannot be used" in line


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("run.dir=s3://bucket/runs", "run.copy_to"),
        ("run.copy_to=runs", "a URI, such as s3://bucket/runs"),
        ("run.copy_to=s4://bucket", "Unrecognized filesystem type"),
        ("run.copy_to=s3://", "names no bucket"),
        ("run.copy_to=s3://key:secret@bucket", "credentials"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line(command, setting, said):
    code, line = command(setting, *SMALL)
    assert code == 2 and line.startswith(f"error: {setting.partition('=')[0]}: ") and said in line
    assert "secret" not in line


def test_what_is_damaged_or_foreign_is_not_fetched(begin, bucket, tmp_path):
    with pytest.raises(CheckpointError, match="holds no copy"):
        fetch(f"{bucket}/run", tmp_path / "far")
    assert begin(bucket, "here", "run.steps=1")[0] == 0
    (metrics,) = tmp_path.glob("bucket/run/record/*/metrics.jsonl")
    metrics.write_text(metrics.read_text().replace("1", "2", 1))
    with pytest.raises(ServiceError, match="metrics.jsonl is damaged"):
        fetch(f"{bucket}/run", tmp_path / "far")
    index = tmp_path / "bucket/run/copy.json"
    stored = json.loads(index.read_text())
    stored["files"] = {"../escaped": next(iter(stored["files"].values()))}
    index.write_text(json.dumps(stored))
    with pytest.raises(ServiceError, match="in no run"):
        fetch(f"{bucket}/run", tmp_path / "far")
    assert list((tmp_path / "far").iterdir()) == []


def test_a_full_disk_is_not_the_storage_s_fault(begin, bucket, tmp_path, monkeypatch):
    assert begin(bucket, "here", "run.steps=1")[0] == 0

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Place, "get", full)
    with pytest.raises(OSError, match="No space"):
        fetch(f"{bucket}/run", tmp_path / "far")


def test_what_is_not_the_run_s_own_stays_there_and_what_the_run_deleted_goes(command, begin, bucket, tmp_path):
    assert begin(bucket, "here", "run.steps=1", "run.keep_checkpoints=1", "run.best_metric=null")[0] == 0
    for mine in ("notes.txt", "checkpoints/step_000001/mine"):
        (tmp_path / "bucket/run" / mine).parent.mkdir(exist_ok=True)
        (tmp_path / "bucket/run" / mine).write_text("mine")
    assert command("--resume", str(tmp_path / "here/run"), "run.steps=3")[0] == 0
    mine, kept = sorted((tmp_path / "bucket/run/checkpoints").iterdir())
    assert kept.name.startswith("step_000003-") and (mine / "mine").exists()
    assert (tmp_path / "bucket/run/notes.txt").exists() and len(list(tmp_path.glob("bucket/run/record/*"))) == 1
