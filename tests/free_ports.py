"""Ports for servers that can't choose their own."""

import contextlib
import random
import socket

# Above Ray's range of workers' ports, below those that the kernel hands out: nobody takes one before its server does.
FIRST_PORT, LAST_PORT = 20000, 32767


def free_ports(count):
    """So many different ports on which nobody listens now."""
    ports = set()
    while len(ports) < count:
        port = random.SystemRandom().randint(FIRST_PORT, LAST_PORT)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)
