"""The `.wandb` files of an offline run, written by wandb itself."""

import os
import time

from algorithms.train.trackers.wandb_run import stored_points


def test_every_point_is_read_and_of_a_file_that_was_cut_off_those_before_the_cut(offline):
    import wandb

    client = wandb.init(mode="offline", dir=str(offline), reinit="create_new", settings=wandb.Settings(console="off"))
    for step in range(1, 41):  # records of more than a block of 32 KiB, and of less
        client.log({"a@1": step, "nested": {"b": 1}, "text": "x" * (40_000 if step % 5 == 0 else 100)}, step=step)
    client.finish()
    (file,) = offline.glob("wandb/offline-run-*/*.wandb")
    points = _written(file, ("a@1", 40))
    assert {step for tag, step in points if tag == "a@1"} == set(range(1, 41))
    assert ("nested", 40) in points
    size, found = os.path.getsize(file), []
    for share in (0.9, 0.5, 0.1):
        os.truncate(file, int(share * size))
        found.append({step for tag, step in stored_points(file) if tag == "a@1"})
    assert all(steps == set(range(1, len(steps) + 1)) for steps in found)
    assert 40 > len(found[0]) > len(found[1]) > len(found[2]) > 0
    os.truncate(file, 3)
    assert stored_points(file) == set()


def _written(file, last):
    """The points, once the last is there: wandb's own process writes the end of the file after `finish` returned."""
    end = time.monotonic() + 60
    while last not in (points := stored_points(file)) and time.monotonic() < end:
        time.sleep(0.1)
    return points
