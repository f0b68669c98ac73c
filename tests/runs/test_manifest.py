import json
from pathlib import Path

import pytest

from algorithms.train.manifest import MANIFEST, damage, write_manifest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "state.json").write_text("{}")
    write_manifest(tmp_path)
    return tmp_path


def test_an_untouched_folder_is_whole_and_may_hold_more(folder):
    assert damage(folder) is None
    (folder / "note").write_text("mine")
    assert damage(folder) is None


def test_one_flipped_bit_is_found_by_name(folder):
    weights = folder / "model" / "weights"
    content = bytearray(weights.read_bytes())
    content[5000] ^= 1
    weights.write_bytes(content)
    assert "model/weights has changed" in damage(folder)


def test_a_truncated_a_missing_and_an_unlisted_folder_are_found(folder, tmp_path):
    weights = folder / "model" / "weights"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "model/weights has 10239 bytes instead of 10240" in damage(folder)
    weights.unlink()
    assert "model/weights is missing" in damage(folder)
    (folder / MANIFEST).write_text("{")
    assert "cannot be read" in damage(folder)
    (folder / MANIFEST).write_text("{}")
    assert "lists no file" in damage(folder)
    (folder / MANIFEST).unlink()
    assert "missing" in damage(folder)


UNREADABLE = Path("/proc/self/mem")  # it is opened, says that it is empty, and gives EIO when it is read


def test_a_file_that_the_disk_does_not_give_back_is_damage(folder):
    weights = folder / "model" / "weights"
    weights.unlink()
    weights.symlink_to(UNREADABLE)
    listed = json.loads((folder / MANIFEST).read_text())
    listed["model/weights"]["bytes"] = 0
    (folder / MANIFEST).write_text(json.dumps(listed))
    assert damage(folder) == "model/weights cannot be read (Input/output error)"


def test_a_manifest_that_the_disk_does_not_give_back_is_damage(folder):
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to(UNREADABLE)
    assert damage(folder) == f"{MANIFEST} cannot be read (Input/output error)"
