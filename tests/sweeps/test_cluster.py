"""Which Ray a sweep uses, and when no node is large enough; with a stand-in for Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import pactune as pt
from pactune.sweeps import cluster
from pactune.sweeps.cell_settings import Resources


class StandIn:
    """A Ray with one node."""

    def __init__(self, connected_to: str | None = None, **resources: float) -> None:
        self.address, self.calls = connected_to, []
        self._resources = {"CPU": 4.0} | resources

    def is_initialized(self) -> bool:
        return self.address is not None

    def init(self, address: str, **settings: Any) -> None:
        self.address = address
        self.calls.append(f"init {address}")

    def shutdown(self) -> None:
        self.address = None
        self.calls.append("shutdown")

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        return [dead, {"Alive": True, "Resources": self._resources}]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.address)


@pytest.fixture(name="use")
def use_fixture(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(ray: StandIn) -> StandIn:
        monkeypatch.setattr(cluster, "require", lambda _: ray)
        return ray

    return use


def test_a_ray_of_its_own_is_started_and_stopped(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    ray = use(StandIn())
    with pytest.raises(KeyError), cluster.connected(None, Resources()):
        raise KeyError
    assert ray.calls == ["init local", "shutdown"]


@pytest.mark.parametrize("address", [None, "auto", "head:6379"])
def test_a_connection_that_is_there_is_used_and_left_open(use: Any, address: str | None) -> None:
    ray = use(StandIn("head:6379"))
    with cluster.connected(address, Resources()) as given:
        assert given is ray
    assert ray.calls == []


def test_another_cluster_than_the_connected_one(use: Any) -> None:
    ray = use(StandIn("head:6379"))
    with (
        pytest.raises(pt.SettingError, match="'other:6379', and this program is connected to 'head:6379'"),
        cluster.connected("other:6379", Resources()),
    ):
        pass
    assert ray.calls == []


def test_no_node_is_large_enough(use: Any) -> None:
    ray = use(StandIn(GPU=1.0))
    with (
        pytest.raises(pt.SettingError, match="`gpus`=2 for a cell; the largest have 4 CPU and 1 GPU"),
        cluster.connected(None, Resources(gpus=2)),
    ):
        pass
    assert ray.calls == ["init local", "shutdown"]
    with cluster.connected(None, Resources(cpus=4, gpus=0.25)):
        pass


def test_a_cluster_may_grow(use: Any) -> None:
    use(StandIn("head:6379"))
    with (
        pytest.warns(UserWarning, match="the largest have 4 CPU and 0 GPU; the cells wait"),
        cluster.connected("auto", Resources(gpus=1)),
    ):
        pass
