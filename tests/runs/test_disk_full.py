import errno
import sqlite3

import pytest
from ray.exceptions import OutOfDiskError
from safetensors import SafetensorError

from algorithms.script.disk_full import is_disk_full


@pytest.fixture
def full_database():
    """The error of a database that may not grow, as on a full disk."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA max_page_count=1")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("CREATE TABLE t (x)")
    return caught.value


def test_every_librarys_own_error_is_known(full_database):
    assert is_disk_full(full_database)
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert is_disk_full(SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"))
    assert is_disk_full(OutOfDiskError("Local disk is full"))


def test_one_that_caused_another_is_too(full_database):
    try:
        raise ValueError("not a usable history database") from full_database
    except ValueError as error:
        assert is_disk_full(error)


def test_other_errors_are_not():
    assert not is_disk_full(ValueError("no space"))
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(":memory:").execute("SELECT * FROM t")
    assert not is_disk_full(caught.value)
