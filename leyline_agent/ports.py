"""TCP ports: a free one, and whether one can be listened on."""

from __future__ import annotations

import errno
import os
import socket

from leyline_agent.core import SetupError


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(host: str, port: int) -> None:
    """Listen there for a moment.

    Raises:
        SetupError: the port is in use or out of range, or the address is not this machine's.
    """
    if not 0 < port < 65536:
        raise SetupError(f"there is no port {port}; choose one from 1 to 65535 with --port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = found[0]
        with socket.socket(family, kind, proto) as probe:
            # As servers do: a connection that was just closed does not keep a port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SetupError(f"port {port} is in use; choose another with --port") from error
        if error.errno == errno.EACCES:
            raise SetupError(
                f"port {port} needs rights that you lack; choose one above 1023 with --port"
            ) from error
        reason = error.strerror or os.strerror(error.errno or 0)
        raise SetupError(f"cannot listen on {host}: {reason}; choose another --host") from error
