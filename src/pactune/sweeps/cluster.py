"""The connection to Ray: one of our own on this machine, or a cluster that is there already."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pactune.errors import SettingError, warn_user
from pactune.extras import require
from pactune.sweeps.plan import Resources

__all__ = ["connected"]

KNOCK_SECONDS = 10.0


@contextmanager
def connected(address: str | None, needs: Resources) -> Iterator[Any]:
    """Connect, check that a cell fits on some node, give `ray`, and disconnect.

    A connection that the program has made before is used and left open.

    Raises:
        MissingPackageError: ray is not installed.
        SettingError: no cluster answers at `address`, or no node is large enough.
    """
    if address is not None and (not isinstance(address, str) or not address):
        raise SettingError(f'`address` must be that of a Ray cluster, such as "auto" or "host:6379", got {address!r}')
    ray = require("ray")
    ours = not ray.is_initialized()
    try:
        if ours:
            _connect(ray, address)
        elif address not in (None, "auto", here := ray.get_runtime_context().gcs_address):
            raise SettingError(f"`address` is {address!r}, and this program is connected to {here!r}")
        _check_room(ray, needs, wait=address is not None)
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    try:
        _knock(address)
        ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises a different class for every way not to find a cluster
        reason = str(error).strip().split("\n")[0]
        raise SettingError(f"`address` must be that of a running Ray cluster, got {address!r}: {reason}") from error


def _knock(address: str) -> None:
    """Raise at once where nobody listens at host:port; Ray would try for two minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


def _check_room(ray: Any, needs: Resources, *, wait: bool) -> None:
    """Raise where no node can ever run a cell; a cluster may still grow, so there it is a warning."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= needs.cpus and node.get("GPU", 0) >= needs.gpus for node in nodes):
        return
    largest = " and ".join(f"{max(node.get(kind, 0) for node in nodes):g} {kind}" for kind in ("CPU", "GPU"))
    words = f"no node has `cpus`={needs.cpus:g} and `gpus`={needs.gpus:g} for a cell; the largest have {largest}"
    if not wait:
        raise SettingError(words)
    warn_user(f"{words}; the cells wait until one joins")
