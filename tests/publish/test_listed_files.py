"""Which files of a checkpoint an export takes: regular ones that its manifest lists."""

import json
import shutil
from pathlib import Path

import pytest

from algorithms.export import main
from algorithms.models.names import resolve_model
from algorithms.train.manifest import MANIFEST, write_manifest


@pytest.fixture
def run(tmp_path) -> Path:
    """A run with one checkpoint, whose model is the embedded one."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000001"
    shutil.copytree(resolve_model("embedded:tiny"), checkpoint / "model")
    (checkpoint / "state.json").write_text("{}")
    write_manifest(checkpoint)
    return tmp_path / "run"


@pytest.fixture
def model(run) -> Path:
    return run / "checkpoints" / "step_000001" / "model"


@pytest.fixture
def private(tmp_path) -> Path:
    file = tmp_path / "private"
    file.write_text("a key")
    return file


def exported(run: Path) -> set[str]:
    out = run.parent / "out"
    assert main([str(run), str(out)]) == 0
    return {path.name for path in out.rglob("*")}


def test_what_was_put_into_a_checkpoint_later_stays_there(run, model, private):
    whole = exported(run)
    shutil.rmtree(run.parent / "out")
    (model / "link").symlink_to(private)
    (model / "links").symlink_to(private.parent)
    (model / "note.txt").write_text("mine")
    assert exported(run) == whole and "config.json" in whole


@pytest.mark.parametrize("name", ["generation_config.json", "model.safetensors"])
def test_a_link_in_the_place_of_a_file_is_refused(run, model, capsys, name):
    moved = (model / name).rename(run.parent / name)
    (model / name).symlink_to(moved)
    assert main([str(run), str(run.parent / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {model / name}: is a link, or no file that the checkpoint lists")
    assert not (run.parent / "out").exists()


def test_so_are_a_manifest_that_leaves_the_checkpoint_and_one_that_lists_a_link(run, model, private, capsys):
    checkpoint = model.parent
    listed = json.loads((checkpoint / MANIFEST).read_text())
    (checkpoint / "outside").symlink_to(private)
    (model / "link").symlink_to(private)
    write_manifest(checkpoint)
    link = json.loads((checkpoint / MANIFEST).read_text())["model/link"]
    for name in ("model/link", "model/../outside", f"model/../../../../{private.name}"):
        (checkpoint / MANIFEST).write_text(json.dumps({**listed, name: link}))
        assert main([str(run), str(run.parent / "out")]) == 2
        assert f"{name}: is a link, or no file that the checkpoint lists" in capsys.readouterr().err
    assert not (run.parent / "out").exists()
