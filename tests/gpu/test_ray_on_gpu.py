"""A sweep on a Ray cluster of one node with a GPU: built on its processors, proven and raced on its GPU."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from crucible.report.sweep_table import LiveBoard
from crucible.sweep.run import sweep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.rand(512, 1024)]


def get_init_inputs():
    return []
"""


def test_a_sweep_with_the_gpu_as_resource(write, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    write("set/small.py", PROBLEM)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2, num_gpus=1, node_name="worker")
        options = {"quick": True, "forward_only": True, "rounds": 3, "samples": 1, "against": ("eager",)}
        out = io.StringIO()
        with LiveBoard(Console(file=out)) as board:
            result = sweep(tmp_path / "set", tmp_path / "s", ray=cluster.address, board=board, **options)
    finally:
        cluster.shutdown()
    [row] = result.rows
    assert row["status"] == "proven" and row["nodes"] == {"fuse": "worker", "judge": "worker"}, row
    assert row["environment"]["gpu"] == torch.cuda.get_device_name(0)
    [line] = [r for r in row["race"]["passes"][0]["rows"] if r["kind"] == "candidate"]
    assert line["times"]["median"] > 0 and "x eager" in out.getvalue()
    # The same command without Ray finds the row: it is the same machine.
    assert sweep(tmp_path / "set", tmp_path / "s", **options).kept == 1
