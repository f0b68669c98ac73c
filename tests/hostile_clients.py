"""Clients of an endpoint that have no key and hold what they can: `python -m tests.hostile_clients PORT COUNT`."""

import asyncio
import itertools
import sys

BODY = b"POST /x/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n"
# What each kind sends at first, and then again and again.
KINDS = {
    "silent": (b"", b""),
    "slow head": (b"GET / HTTP/1.1\r\nHost: x\r\n", b"a: b\r\n"),
    "long head": (b"GET / HTTP/1.1\r\nHost: x\r\na: ", b"a" * 1000),
    "slow body": (BODY, b"a"),
    "large body": (BODY + bytes(1 << 20), bytes(1 << 16)),
    "garbage": (b"\x16\x03\x01\x02\x00", b"\xff\0\r\n\r\n"),
}


async def attack(port: int, count: int) -> None:
    """Keep so many hostile connections, half of them with their own side closed, until cancelled."""
    kinds = itertools.islice(itertools.cycle(itertools.product(KINDS.values(), (False, True))), count)
    async with asyncio.TaskGroup() as group:
        for (first, piece), half_open in kinds:
            group.create_task(_connect_again_and_again(port, first, piece, half_open))


async def _connect_again_and_again(port: int, first: bytes, piece: bytes, half_open: bool) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            if half_open:
                writer.write_eof()
            while not reader.at_eof():
                await reader.read(0 if piece else 1000)
                await asyncio.sleep(0.1)
                if piece and not half_open:
                    writer.write(piece)
        except OSError:
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(attack(int(sys.argv[1]), int(sys.argv[2])))
