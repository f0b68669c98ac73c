"""Files around a run that are of another form, or no files: one line each, without a wait."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from algorithms.config.errors import ConfigError, ServiceError
from algorithms.export import main as export
from algorithms.publishing import model_folder
from algorithms.report import main as report
from algorithms.train.rebuild import main as rebuild
from algorithms.train.remote_copy import IDS, INDEX, Place, fetch
from algorithms.train.start_from import _check_adapter
from algorithms.train.stopping import orders
from algorithms.utils.errors import CheckpointError
from tests.report.runs import make_run

DEEP = "[" * 100_000


def refused(code, capsys):
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and line.startswith("error: ")
    return line


# -- A copy on object storage ------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    """A place, and a run's folder that knows the copy there."""
    (tmp_path / "bucket" / "run").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / IDS).write_text("known\n")
    return (tmp_path / "bucket").as_uri(), tmp_path / "bucket" / "run", tmp_path / "run"


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "[1]",
        '{"id": "known", "step": 1e999, "files": {}}',
        '{"id": "known", "step": 1, "files": [1]}',
        '{"id": "known", "step": 1, "files": {"config.yaml": {}}}',
        '{"id": "known", "step": 1, "files": {"config.yaml": 1}}',
    ],
    ids=["deep", "list", "infinite", "no names", "no key", "no entry"],
)
def test_a_list_of_a_copy_that_is_none_is_one_line(text, place, tmp_path):
    uri, folder, run = place
    (folder / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=r"^run\.copy_to: .*/copy\.json is no list of a copy's files .*; fix: "):
        Place(uri, "run").check(run)
    with pytest.raises(CheckpointError, match="is no list of a copy's files"):
        fetch(f"{uri}/run", tmp_path / "far")


@pytest.mark.parametrize("settings", ["run: [1]\n", f"run: {{mode: '{'7' * 40}'}}\n"])
def test_a_copy_of_other_settings_is_not_fetched_in_part(settings, place, tmp_path):
    uri, folder, _ = place
    (folder / "settings").write_text(settings)
    entry = {"key": "settings", "bytes": len(settings), "sha256": hashlib.sha256(settings.encode()).hexdigest()}
    (folder / INDEX).write_text(json.dumps({"id": "one", "step": 1, "files": {"config.yaml": entry}}))
    if "[1]" in settings:
        with pytest.raises(ServiceError, match="cannot be fetched"):
            fetch(f"{uri}/run", tmp_path / "far")
        assert list((tmp_path / "far").iterdir()) == []
    else:
        assert fetch(f"{uri}/run", tmp_path / "far").stat().st_mode & 0o777 == 0o777


def test_ids_of_copies_that_are_no_text_are_none(place):
    uri, folder, run = place
    (folder / INDEX).write_text('{"id": "known", "step": 1, "files": {}}')
    (run / IDS).write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match="is a copy of another run"):
        Place(uri, "run").check(run)


# -- What a run starts from --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [DEEP, '{"r": 1e999, "lora_alpha": 1}', "[1]", ""])
def test_an_adapter_s_configuration_of_another_form_is_one_line(text, tmp_path):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"adapter_config\.json cannot be read"):
        _check_adapter(tmp_path, None)


# -- Commands on a run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics.jsonl", "conversations.jsonl", "evaluation.json", "summary.json"])
def test_a_rebuild_does_not_wait_for_a_pipe(name, tmp_path, capsys):
    run = make_run(tmp_path)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert f"{run / name}: cannot be used (it is no file)" in refused(rebuild([str(run)]), capsys)


def test_a_report_does_not_take_the_place_of_a_device(tmp_path, capsys):
    run, pipe = make_run(tmp_path), tmp_path / "pipe"
    os.mkfifo(pipe)
    assert f"--out: {pipe} is no file" in refused(report([str(run), "--out", str(pipe)]), capsys)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("scores", "settings"),
    [('{"math": 1}', "a: 1\n"), (DEEP, "a: 1\n"), ('{"math": {"problems": 3}}', "a: 1\n"), ("{}", "rl_module: 3\n")],
    ids=["number", "deep", "half", "settings"],
)
def test_a_report_names_the_evaluation_that_it_cannot_read(scores, settings, tmp_path, capsys):
    run = make_run(tmp_path)
    (run / "eval").mkdir()
    (run / "eval" / "scores.json").write_text(scores)
    (run / "eval" / "evaluation.yaml").write_text(settings)
    code = report([str(run), "--out", str(tmp_path / "page.html")])
    if scores == "{}":
        assert code == 0
    else:
        line = refused(code, capsys)
        assert f"{run / 'eval' / 'scores.json'}: cannot be read" in line and "; fix: " in line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
@pytest.mark.parametrize(
    "command", ["algorithms.report RUN --out PAGE", "r3env.inspect --n 1", "r3env.check --data EMBEDDED"]
)
def test_a_full_output_is_one_line(command, tmp_path):
    names = {"RUN": str(make_run(tmp_path)), "PAGE": str(tmp_path / "page.html"), "EMBEDDED": "embedded:train"}
    words = [names.get(word, word) for word in command.split()]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: No space left on device")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_half_of_an_export(number, run, tmp_path, monkeypatch, capsys):
    before = {each: signal.getsignal(each) for each in orders()}
    model = run.checkpoints_folder / "step_000003" / "model"
    copy = shutil.copyfile
    model.mkdir()
    (model / "config.json").write_text("{}")

    def interrupted(*arguments):
        copy(*arguments)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(model_folder, "_checkpoint", lambda *_: model.parent)
    monkeypatch.setattr(model_folder, "_listed_files", lambda _: [model_folder.PurePath("model/config.json")])
    monkeypatch.setattr(model_folder.shutil, "copyfile", interrupted)
    try:
        assert export([str(run.path), str(tmp_path / "out")]) == 130
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted" and not (tmp_path / "out").exists()
