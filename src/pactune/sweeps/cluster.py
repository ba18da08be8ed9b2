"""The connection to Ray: a new Ray on this machine, or a cluster that is already running."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pactune.errors import SettingError, warn_user
from pactune.extras import require
from pactune.sweeps.cell_settings import Resources

__all__ = ["connected"]

CONNECT_SECONDS = 10.0


@contextmanager
def connected(address: str | None, needs: Resources) -> Iterator[Any]:
    """Connect to Ray, check that a cell fits on a node, yield the package `ray`, and disconnect.

    If the program has already connected to Ray, that connection is used and stays open.

    Args:
        address: of a running cluster; None starts Ray on this machine.
        needs: the resources of one cell.

    Raises:
        MissingPackageError: ray is not installed.
        SettingError: no cluster answers at `address`, or no node is large enough.
    """
    if address is not None and (not isinstance(address, str) or not address):
        raise SettingError(f'`address` must be that of a Ray cluster, such as "auto" or "host:6379", got {address!r}')
    ray = require("ray")
    connects = not ray.is_initialized()
    try:
        if connects:
            _connect(ray, address)
        elif address not in (None, "auto", present := ray.get_runtime_context().gcs_address):
            raise SettingError(f"`address` is {address!r}, and this program is connected to {present!r}")
        _check_capacity(ray, needs, may_grow=address is not None)
        yield ray
    finally:
        if connects:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    try:
        _check_listening(address)
        ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises a different class for every way not to find a cluster
        reason = str(error).strip().split("\n")[0]
        raise SettingError(f"`address` must be that of a running Ray cluster, got {address!r}: {reason}") from error


def _check_listening(address: str) -> None:
    """Raise an OSError if nothing listens at host:port. Ray itself would try for two minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


def _check_capacity(ray: Any, needs: Resources, *, may_grow: bool) -> None:
    """Raise if no node can run a cell. If a larger node may join the cluster, warn instead."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= needs.cpus and node.get("GPU", 0) >= needs.gpus for node in nodes):
        return
    largest = " and ".join(f"{max(node.get(kind, 0) for node in nodes):g} {kind}" for kind in ("CPU", "GPU"))
    message = f"no node has `cpus`={needs.cpus:g} and `gpus`={needs.gpus:g} for a cell; the largest have {largest}"
    if not may_grow:
        raise SettingError(message)
    warn_user(f"{message}; the cells wait until one joins")
