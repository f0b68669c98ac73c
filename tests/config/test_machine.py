"""What a container leaves of the machine."""

from algorithms.utils.machine import memory_bytes


def test_the_memory_is_what_a_container_may_use(tmp_path):
    unlimited, limited = tmp_path / "unlimited", tmp_path / "limited"
    unlimited.write_text("max\n")
    limited.write_text(f"{2**20}\n")
    whole = memory_bytes((tmp_path / "missing", unlimited))
    assert whole > 2**30 and memory_bytes((unlimited, limited)) == 2**20
