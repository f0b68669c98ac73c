"""The statistics' memory, measured by the benchmark in processes of its own."""

import sys

import pytest

from benchmarks.learner import Case, in_a_process


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of the resident set is reset through /proc")
def test_statistics_in_chunks_need_an_eighth_of_the_memory_at_most():
    # 64 rows of logits, the least that is there at once, are more than what the C library may keep for itself once it
    # was freed (32 MiB): smaller tensors measure how it fills its gaps.
    sizes = {"tokens": 1024, "vocabulary": 140_000, "hidden": 16, "dtype": "float32", "chunk": 128}
    found = {
        way: in_a_process(Case("statistics", way, **sizes, layers=1, device="cpu", threads=1, repeats=1))
        for way in ("naive", "chunked")
    }
    # Three copies of the logits; less some of the pages from before, which the kernel may take back meanwhile.
    assert found["naive"].peak_bytes > 2.5 * 4 * sizes["tokens"] * sizes["vocabulary"]
    assert found["chunked"].peak_bytes < found["naive"].peak_bytes / 8
