"""Large blocks of memory lie in pages of 2 MiB."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Prints the flags of the mapping that holds a tensor of 64 MiB.
FLAGS = """\
from algorithms.utils.process import prepare
prepare()
import torch
tensor = torch.zeros(1 << 24)
address = tensor.data_ptr()
inside = False
for line in open("/proc/self/smaps"):
    first, *rest = line.split()
    if first.endswith(":"):
        if inside and first == "VmFlags:":
            print(*rest)
    else:
        low, high = (int(end, 16) for end in first.split("-"))
        inside = low <= address < high
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="this kernel has no large pages"
)
def test_a_command_asks_for_large_pages():
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run([sys.executable, "-c", FLAGS], env=environment, capture_output=True, text=True, check=True)
    assert "hg" in done.stdout.split(), done.stdout
