"""A run in a bucket: pyarrow's S3 client, and a server on this machine that goes away and comes back."""

import pytest

from algorithms.train import mirror
from algorithms.train.run_directory import RunDirectory
from algorithms.train.storage import Storage
from tests.runs.s3_server import S3Server
from tests.runs.test_storage import SMALL, files, steps


@pytest.fixture
def server(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = S3Server()
    server.start()
    yield server
    server.stop()


def test_a_run_outlives_its_server_and_its_machine(command, algorithm, server, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(mirror, "LAST_WAIT_S", 0.0)
    here, storage = tmp_path / "here", Storage(server.uri)
    assert command(f"run.dir={server.uri}", f"run.local_dir={here}", "run.steps=2", *SMALL)[0] == 0
    sent = {file: size for file, size in storage.sizes("run").items() if not file.startswith("history/")}
    assert sent == {file: len(content) for file, content in files(here / "run").items()}
    server.stop()
    assert command("--resume", str(here / "run"), "run.steps=3")[0] == 0
    assert "cannot be reached" in caplog.text and "fix: --resume" in caplog.text
    elsewhere = ["--resume", storage.run("run"), f"run.local_dir={tmp_path / 'far'}"]
    code, said = command(*elsewhere)
    assert code == 2 and "cannot be reached" in said and "AWS_ENDPOINT_URL" in said
    server.start()
    assert command("--resume", str(here / "run"))[0] == 0
    assert command(*elsewhere, "run.steps=4")[0] == 0
    assert steps(RunDirectory(tmp_path / "far/run")) == [1, 2, 3, 4]


def test_a_file_of_several_parts_arrives_whole(server, tmp_path):
    content = bytes(range(256)) * (12 << 12)
    (tmp_path / "weights").write_bytes(content)
    storage = Storage(server.uri)
    for name in ("weights", "config.yaml"):
        storage.put(tmp_path / "weights", "run", name)
    assert storage.fetch("run", tmp_path / "far").joinpath("weights").read_bytes() == content
    storage.delete("run", "weights")
    assert storage.sizes("run") == {"config.yaml": len(content)}
