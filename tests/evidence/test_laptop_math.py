"""The cut of SVAMP: disjoint parts, the same whatever the order of the file."""

import json

import pytest

from benchmarks.laptop_math import PARTS, cut


def test_a_cut_is_disjoint_and_does_not_depend_on_the_files_order(tmp_path):
    lines = [json.dumps({"ID": f"chal-{number}"}) for number in range(1000)]
    found = []
    for name, rows in (("there", lines), ("back", lines[::-1])):
        source, folder = tmp_path / f"{name}.jsonl", tmp_path / name
        folder.mkdir()
        source.write_text("\n".join(rows))
        cut(source, folder)
        found.append([(folder / f"svamp-{part}.jsonl").read_text().splitlines() for part in PARTS])
    assert found[0] == found[1]
    assert [len(part) for part in found[0]] == [550, 150, 300]
    assert {line for part in found[0] for line in part} == set(lines)
    assert sorted(found[0][0]) != found[0][0]


def test_another_files_problems_are_refused(tmp_path):
    source = tmp_path / "few.jsonl"
    source.write_text('{"ID": "a"}\n')
    with pytest.raises(ValueError, match="1 problems instead of 1000"):
        cut(source, tmp_path)
