"""A run's folder of checkpoints: which one a resume takes, what is deleted, what a damaged one does to the others."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from ray.exceptions import ObjectStoreFullError, OutOfDiskError

from algorithms.train import checkpoints as module
from algorithms.train import checkpoints as one
from algorithms.train.checkpoints import Checkpoints
from algorithms.train.manifest import write_manifest
from algorithms.utils.errors import CheckpointError


def written(folder, step, metrics=None):
    path = folder / f"step_{step:06d}"
    path.mkdir()
    (path / "state.json").write_text(json.dumps({"steps_done": step, "metrics": metrics or {}}))
    write_manifest(path)
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Saves a step's checkpoint without a model in it; returns what the history may forget before."""

    def make(step, metrics=None, **settings):
        forgotten = []
        algo = SimpleNamespace(steps_done=step, prune=forgotten.append)
        monkeypatch.setattr(module, "save_checkpoint", lambda algo, folder, metrics: written(folder, step, metrics))
        Checkpoints(tmp_path, **settings).save(algo, metrics or {})
        return forgotten[0]["steps_done"]

    return make


def test_the_newest_and_the_best_stay_and_the_history_keeps_what_the_oldest_of_them_needs(tmp_path, save):
    for step, accuracy in ((1, 0.2), (2, 0.9), (3, 0.4), (4, 0.1)):
        oldest = save(step, {"accuracy": accuracy}, keep=2, best_by="accuracy")
    assert names(tmp_path) == ["step_000002", "step_000003", "step_000004"]
    assert oldest == 2


def test_an_evaluation_behind_a_checkpoint_counts(tmp_path, save):
    """It failed with the step, and was made when the run resumed: the row has it, `state.json` does not."""
    save(1, {})
    rows = [{"step": 1, "accuracy": 0.9}, {"step": 2, "accuracy": 0.2}, {"step": 3, "accuracy": None}]
    for step, accuracy in ((2, 0.2), (3, 0.1)):
        save(step, {"accuracy": accuracy}, keep=1, best_by="accuracy", rows=lambda: rows)
    assert names(tmp_path) == ["step_000001", "step_000003"]


def test_what_is_no_number_is_never_the_best(tmp_path, save):
    for step, accuracy in ((1, float("nan")), (2, 0.9), (3, 0.1)):
        save(step, {"accuracy": accuracy}, keep=1, best_by="accuracy")
    assert names(tmp_path) == ["step_000002", "step_000003"]


def test_a_checkpoint_without_its_state_is_refused_by_name_and_the_one_before_offered(tmp_path):
    older, newer = written(tmp_path, 1), written(tmp_path, 2)
    (newer / "state.json").unlink()
    with pytest.raises(CheckpointError, match=f"{newer}.*state.json is missing; fix: --resume {older}"):
        Checkpoints(tmp_path).newest()
    assert Checkpoints(tmp_path).newest("model/") == newer, "an evaluation reads its model alone"


def test_an_older_one_that_is_damaged_does_not_keep_a_run_from_saving(tmp_path, save):
    (written(tmp_path, 1) / "state.json").write_text('{"steps_do')
    shutil.rmtree(written(tmp_path, 2))
    for step in (3, 4):
        save(step, keep=1)
    assert names(tmp_path) == ["step_000001", "step_000004"]


def test_one_that_was_deleted_in_part_is_no_checkpoint_and_goes_with_the_next(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        written(tmp_path, step)

    def killed(path):
        (path / "state.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Checkpoints(tmp_path).delete_after(1)
    assert Checkpoints(tmp_path).newest().name == "step_000002"
    Checkpoints(tmp_path).delete_after(1)
    assert names(tmp_path) == ["step_000001"]


def test_what_kills_left_of_any_step_goes_when_the_run_goes_on(tmp_path):
    written(tmp_path, 1)
    for rest in (".step_000007.partial", ".step_000003.deleted"):
        (tmp_path / rest / "model").mkdir(parents=True)
    Checkpoints(tmp_path).delete_after(1)
    assert names(tmp_path) == ["step_000001"]


@pytest.mark.parametrize("error", [ObjectStoreFullError("no room"), OutOfDiskError("no room")])
def test_a_disk_that_is_full_while_a_checkpoint_is_read_is_not_taken_for_damage(tmp_path, monkeypatch, error):
    def full(*_):
        raise error

    (tmp_path / "state.json").write_text(json.dumps({"format": one.FORMAT}))
    np.savez(tmp_path / "arrays.npz")
    for name, value in (("each_learner", [set()]), ("tensor_names", set()), ("read_tensors", [{}])):
        monkeypatch.setattr(one, name, lambda *_, value=value: value)
    monkeypatch.setattr(one, "put_tensors", full)
    settings = SimpleNamespace(rl_module_settings=SimpleNamespace(lora_rank=0))
    with pytest.raises(type(error)):
        one.load_checkpoint(SimpleNamespace(config=settings, learner_group=None), tmp_path)


def test_while_the_history_goes_back_to_an_older_one_the_later_ones_are_hidden(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    paths = [written(tmp_path, step) for step in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt), checkpoints.hidden_after(paths[0]):
        assert checkpoints.newest() == paths[0]
        raise KeyboardInterrupt
    assert checkpoints.newest() == paths[2] == checkpoints.checked(paths[2]), "it did not go back"
    with checkpoints.hidden_after(paths[1]):
        assert checkpoints.newest() == paths[1]
    checkpoints.delete_after(2)
    assert names(tmp_path) == ["step_000001", "step_000002"]


def test_what_an_interrupted_deletion_left_is_in_nobodys_way(tmp_path):
    written(tmp_path, 2).rename(tmp_path / ".step_000002.deleted")
    paths = [written(tmp_path, step) for step in (1, 2)]
    with Checkpoints(tmp_path).hidden_after(paths[0]):
        assert names(tmp_path) == [".step_000002.deleted", "step_000001"]
