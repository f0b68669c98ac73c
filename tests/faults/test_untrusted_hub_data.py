"""Data sets of the Hub, read by the library itself from folders that lie where it would have downloaded them."""

import io
import json
import tarfile

import datasets
import pytest
import torch

from r3env.data.loading import load_table
from r3env.data.readers import hub_rows
from r3env.data.sources import DataError, Source


@pytest.fixture
def on_hub(tmp_path, monkeypatch):
    """A folder of files as a data set of the Hub: a path is a name to the library, too."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "problems"
    folder.mkdir()
    return folder, Source("owner/problems", "hub", str(folder))


def test_tar_files_whose_reader_opens_pickles_are_refused(on_hub, monkeypatch):
    folder, source = on_hub
    opened = []
    monkeypatch.setattr(torch, "load", lambda *_, **__: opened.append("a pickle"))
    with tarfile.open(folder / "train.tar", "w") as archive:
        for name, content in (("1.json", b'{"problem": "1+1", "answer": "2"}'), ("1.pth", b"a pickle")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises(DataError, match=r"owner/problems: .*'webdataset'.*; fix: .*Parquet, JSON or CSV"):
        list(hub_rows(source))
    assert not opened


def test_other_files_that_a_local_one_may_not_be_are_refused(on_hub):
    folder, source = on_hub
    saved = folder.with_name("saved")
    datasets.Dataset.from_list([{"problem": "1+1", "answer": "2"}]).save_to_disk(saved)
    (saved / "data-00000-of-00001.arrow").rename(folder / "train.arrow")
    with pytest.raises(DataError, match="'arrow'"):
        list(hub_rows(source))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_the_usual_files_are_read(on_hub, suffix):
    folder, source = on_hub
    rows = [{"problem": "1+1", "answer": "two"}, {"problem": "2+2", "answer": "four"}]
    if suffix == "jsonl":
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        table = datasets.Dataset.from_list(rows)
        getattr(table, f"to_{suffix}")(folder / f"train.{suffix}")
    table, counts = load_table(source)
    assert [query.answer for query in table.values()] == ["two", "four"] and counts.rows == 2
