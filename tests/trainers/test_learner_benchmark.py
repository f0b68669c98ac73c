"""The statistics' memory, measured by the benchmark in processes of its own."""

import sys

import pytest

from benchmarks.learner import Case, in_a_process


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of the resident set is reset through /proc")
def test_statistics_in_chunks_need_an_eighth_of_the_memory_at_most():
    # A chunk is larger than what the C library keeps for itself once it was freed (32 MiB).
    sizes = {"tokens": 1024, "vocabulary": 100_000, "hidden": 16, "dtype": "float32", "chunk": 96}
    found = {
        way: in_a_process(Case("statistics", way, **sizes, layers=1, device="cpu", threads=1, repeats=1))
        for way in ("naive", "chunked")
    }
    assert found["naive"].peak_bytes >= 3 * 4 * sizes["tokens"] * sizes["vocabulary"]
    assert found["chunked"].peak_bytes < found["naive"].peak_bytes / 8
