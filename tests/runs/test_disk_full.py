import errno
import resource
import sqlite3

import pytest
from ray.exceptions import OutOfDiskError
from safetensors import SafetensorError

from algorithms.train.exit_codes import in_one_line
from algorithms.utils.errors import is_disk_full, is_not_written


@pytest.fixture
def full_database():
    """The error of a database that may not grow, as on a full disk."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA max_page_count=1")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("CREATE TABLE t (x)")
    return caught.value


@pytest.fixture
def refused_write(tmp_path):
    """The error of a database whose file may not grow, as where a quota is used up: SQLite tells no cause."""
    connection = sqlite3.connect(tmp_path / "database")
    connection.execute("CREATE TABLE t (x)")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error") as caught:
            connection.execute("INSERT INTO t VALUES (?)", (b"x" * 2**20,))
            connection.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        connection.close()
    return caught.value


def ending_of(error, capsys):
    """Exit code and line of a script that it ends."""

    def fail():
        raise error

    code = in_one_line(fail, retry="resume with --resume")
    return code, capsys.readouterr().err.strip()


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
    assert not is_not_written(caught.value)


def test_a_write_that_sqlite_does_not_explain_may_be_a_full_disk(refused_write, capsys):
    assert refused_write.sqlite_errorcode == sqlite3.SQLITE_IOERR_WRITE
    assert is_disk_full(refused_write) and is_not_written(refused_write)
    assert ending_of(refused_write, capsys) == (
        1,
        "error: the history cannot be written (disk I/O error); what was written before is intact; "
        "fix: check the free space, the quota and the health of its disk, then resume with --resume",
    )


@pytest.mark.parametrize("code", ["WRITE", "FSYNC", "DIR_FSYNC", "TRUNCATE", "READ"])
def test_of_sqlites_io_errors_those_of_writing_are_meant(code):
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_IOERR_{code}")
    assert is_disk_full(error) == is_not_written(error) == (code != "READ")


def test_a_disk_that_is_known_to_be_full_is_called_so(full_database, capsys):
    code, line = ending_of(full_database, capsys)
    assert code == 1 and line.startswith("error: No space left on device (") and "make room" in line
