# SPDX-License-Identifier: Apache-2.0
"""PyTorch's parallel trainings over the backend, against one process that has all ranks' batches."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


class Net(nn.Module):
    """A convolution, a norm, an embedding, and a branch that some steps leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(2, 8)
        self.words = nn.Embedding(7, 8)
        self.branch = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor], branches: bool) -> torch.Tensor:
        images, words = batch
        x = self.norm(self.conv(images)).relu().mean((2, 3)) + self.words(words)
        return self.head(self.branch(x) if branches else x)


def make_net() -> Net:
    torch.manual_seed(1)
    return Net().double()


def make_batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (torch.randn(4, 3, 6, 6, dtype=torch.float64, generator=generator),
            torch.randint(7, (4,), generator=generator))


def train(net: nn.Module, batches: Callable[[int], list], branches: Callable[[int], bool]) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = batches(step)
        for batch in parts:
            (net(batch, branches(step)).square().mean() / len(parts)).backward()
        optimizer.step()


def reference(size: int, branches: Callable[[int], bool]) -> dict[str, torch.Tensor]:
    net = make_net()
    train(net, lambda step: [make_batch(step, rank) for rank in range(size)], branches)
    return net.state_dict()


def expect_close(actual: dict, wanted: dict, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


def expect_same_everywhere(name: str, value: torch.Tensor) -> None:
    of_all = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, value)
    assert all(torch.equal(value, other) for other in of_all), f"the ranks differ in {name}"


def ddp(rank: int, size: int, options: dict, hook: str = "", skips: bool = False) -> None:
    def branches(step: int) -> bool:
        return not skips or step % 2 == 0

    # PowerSGD calls collectives in callbacks, which only within one bucket are in one order.
    buckets = {} if hook == "powerSGD" else {"bucket_cap_mb": 0.001}
    net = DistributedDataParallel(make_net(), **buckets, **options)
    tolerance = 1e-9
    if hook == "python":
        group = dist.distributed_c10d._get_default_group()
        net.register_comm_hook(group, default_hooks.allreduce_hook)
    elif hook == "fp16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
        tolerance = 2e-3
    elif hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=8, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        tolerance = 1.0  # it approximates
    elif hook == "builtin":
        net._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    if skips and not options:
        ranks.fails(lambda: train(net, lambda step: [make_batch(step, rank)], branches),
                    "find_unused_parameters")
        return
    train(net, lambda step: [make_batch(step, rank)], branches)
    expect_close(net.module.state_dict(), reference(size, branches), tolerance)
    for name, value in net.module.state_dict().items():
        expect_same_everywhere(name, value)
    if "gradient_as_bucket_view" in options:
        address = net.module.conv.weight.grad.data_ptr()
        regions = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
        ends = ([int(end, 16) for end in region[0].split("-")] + region[-2:] for region in regions)
        assert any(begin <= address < end and "ronde" in "".join(name)
                   for begin, end, *name in ends), "the gradient is not in shared memory"


def accumulate(rank: int, size: int) -> None:
    """no_sync() and a sparse gradient."""
    net = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True), nn.Linear(4, 2)))
    words = torch.randint(9, (8, 3), generator=torch.Generator().manual_seed(rank))
    with net.no_sync():
        net(words).sum().backward()
    net(words).square().sum().backward()
    for name, parameter in net.named_parameters():
        mine = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        expect_same_everywhere(name, mine.contiguous())


def fsdp(rank: int, size: int, folder: str) -> None:
    """FSDP2, with a checkpoint that one process reads whole."""
    ranks.init(rank, size, folder)
    net = make_net()
    mesh = init_device_mesh("cpu", (size,))
    for layer in (net.conv, net.words, net.branch, net.head):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, lambda step: [make_batch(step, rank)], lambda step: True)
    wanted = reference(size, lambda step: True)
    expect_close({name: value.full_tensor() for name, value in net.state_dict().items()}, wanted)
    checkpoint.save(net.state_dict(), checkpoint_id=f"{folder}/saved")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    state = net.state_dict()
    checkpoint.load(state, checkpoint_id=f"{folder}/saved")
    net.load_state_dict(state)
    expect_close({name: value.full_tensor() for name, value in net.state_dict().items()}, wanted)
    if rank == 0:
        whole = make_net().state_dict()
        checkpoint.load(whole, checkpoint_id=f"{folder}/saved", no_dist=True)
        expect_close(whole, wanted)
    dist.destroy_process_group()


def dtensor(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(24.0).view(size * 2, -1) + 1
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal((rows @ distribute_tensor(whole.t(), mesh, [Replicate()])).full_tensor(),
                       whole @ whole.t())
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    batch = torch.randn(5, 8)
    wanted = net(batch)
    wanted.sum().backward()
    gradient = net[0].weight.grad.clone()
    net.zero_grad()
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    result = net(batch)
    result.sum().backward()
    assert torch.allclose(result, wanted, atol=1e-6)
    assert torch.allclose(net[0].weight.grad.full_tensor(), gradient, atol=1e-6)


def mixed(rank: int, size: int, folder: str) -> None:
    """A backend for each kind of device."""
    ranks.init(rank, size, folder, backend="cpu:ronde,cuda:gloo")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((4,), float(size)))
    found = [None] * size
    dist.all_gather_object(found, rank)
    assert found == list(range(size))
    dist.destroy_process_group()


class Training(unittest.TestCase):
    def test_ddp(self) -> None:
        for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True},
                        {"static_graph": True, "gradient_as_bucket_view": True}):
            with self.subTest(options=options):
                ranks.run(ddp, options)

    def test_ddp_hooks(self) -> None:
        for hook in ("python", "fp16", "powerSGD", "builtin"):
            with self.subTest(hook=hook):
                ranks.run(ddp, {}, hook)

    def test_ddp_unused_parameters(self) -> None:
        ranks.run(ddp, {"find_unused_parameters": True}, "", True)
        ranks.run(ddp, {}, "", True)

    test_accumulation = ranks.case(accumulate)
    test_fsdp = ranks.case(fsdp, ranks=3, start=False)
    test_dtensor = ranks.case(dtensor)
    test_mixed_backends = ranks.case(mixed, start=False)


if __name__ == "__main__":
    unittest.main()
