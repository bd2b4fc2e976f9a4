# SPDX-License-Identifier: Apache-2.0
"""Horovod's calls on several ranks, against torch on one process with all ranks' data."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks
import torch
from ranks import FLOATS, INTEGERS
from torch import Tensor, nn

import ronde.torch as hvd

OPS = {hvd.Sum: torch.add, hvd.Average: torch.add, hvd.Product: torch.mul, hvd.Min: torch.minimum,
       hvd.Max: torch.maximum}


def _on_rank(rank: int, size: int, folder: str, function: Callable, port: int) -> Any:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank),
                      LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", RONDE_PORT=str(port),
                      MASTER_PORT="1", TORCHELASTIC_RUN_ID=folder, RONDE_LOG_LEVEL="error")
    hvd.init()
    result = function(rank, size)
    hvd.shutdown()
    return result


def run(function: Callable, count: int = 3, **options: Any) -> list[Any]:
    """The results of function(rank, size) on ranks that have called hvd.init()."""
    with socket.socket() as reserved:  # nobody else is given its port; rank 0, which sets this option too, can listen
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        return ranks.run(_on_rank, function, port, ranks=count, start=False, **options)


def equal(actual: Tensor, expected: Tensor, *what: object) -> None:
    torch.testing.assert_close(actual, expected, msg=lambda text: f"{what}: {text}")


def reductions(rank: int, size: int) -> None:
    for dtype, op in itertools.product(INTEGERS + FLOATS, OPS):
        inputs = [ranks.values(dtype, one, 6, 5) for one in range(size)]
        own, total = inputs[rank].clone(), ranks.reduced(OPS[op], inputs, op == hvd.Average)
        equal(hvd.allreduce(own, op=op), total, dtype, op)
        equal(own, inputs[rank], "the input")
        pair = hvd.grouped_allreduce([own, own[0]], op=op)
        equal(pair[1], total[0], dtype, op)
        part = total[2 * rank:2 * rank + 2]
        for one in (hvd.reducescatter(own, op=op), hvd.grouped_reducescatter([own, own[:4]], op=op)[0]):
            equal(one, part, dtype, op)
        column = own.clone().t()
        hvd.grouped_allreduce_([column], op=op)
        equal(column.t(), total, dtype, op, "by columns")
        assert hvd.allreduce_(own, None, "in.place", op) is own
        equal(own, total, dtype, op)
    lazy = torch.full((2,), complex(1, rank)).conj()
    equal(hvd.allreduce(lazy, op=hvd.Sum), torch.full((2,), complex(size, -sum(range(size)))))
    assert hvd.grouped_allreduce([]) == []
    uneven = hvd.reducescatter(torch.ones(7, 2), op=hvd.Sum)
    equal(uneven, torch.full((3 if rank == 0 else 2, 2), float(size)))
    for dtype, op in itertools.product((torch.int32, torch.int64, torch.float32), (hvd.Sum, hvd.Average)):
        own, divisor = torch.tensor([5, 7, -9]).to(dtype), size if op == hvd.Average else 1
        result = hvd.allreduce(own, op=op, prescale_factor=0.5, postscale_factor=1.5)
        equal(result, ((own.double() * 0.5).to(dtype).double() * size / divisor * 1.5).to(dtype), dtype, op)
    equal(hvd.allreduce(torch.ones(3), compression=hvd.Compression.bf16), torch.ones(3))


def movements(rank: int, size: int) -> None:
    for dtype in INTEGERS + FLOATS + [torch.bool]:
        rows = [ranks.values(dtype, one, one * 2, 3) for one in range(size)]
        for all_rows in (hvd.allgather(rows[rank]), hvd.grouped_allgather([rows[rank]] * 2)[1]):
            equal(all_rows, torch.cat(rows), dtype)
        for root in range(size):
            mine, wanted = ranks.values(dtype, rank, 6, 5), ranks.values(dtype, root, 6, 5)
            equal(hvd.broadcast(mine, root), wanted, dtype, root)
            column = mine.t()
            assert hvd.broadcast_(column, root, name="x") is column
            equal(mine, wanted, dtype, root)
        sent = [ranks.values(dtype, one, size, 2, 2) for one in range(size)]
        equal(hvd.alltoall(sent[rank].flatten(0, 1)), torch.cat([one[rank] for one in sent]))
    splits = list(range(size))  # the last row stays
    got, received = hvd.alltoall(torch.arange(4) + 10 * rank, torch.tensor(splits))
    mine = torch.arange(4)[sum(splits[:rank]):][:rank]
    equal(got, torch.cat([mine + 10 * one for one in range(size)]))
    assert received.tolist() == [rank] * size and received.dtype == torch.int64
    equal(hvd.allgather(torch.empty(0, 2)), torch.empty(0, 2))
    rows = [torch.full((one, *[1] * 7, 2), float(one)) for one in range(size)]
    equal(hvd.allgather(rows[rank]), torch.cat(rows), "nine dimensions, of a rank without rows, too")
    dense = torch.eye(4) * (torch.arange(4) == rank)
    for op in (hvd.Sum, hvd.Average):
        handle = hvd.sparse_allreduce_async(dense.to_sparse(), "sparse", op)
        equal(handle().to_dense(), hvd.allreduce(dense, op=op), op)


def handles(rank: int, size: int) -> None:
    tensors = [torch.full((1000,), float(i)) for i in range(50)]
    started = [hvd.allreduce_async_(one, name=str(i), op=hvd.Sum)
               for i, one in enumerate(tensors)][::-1]
    results = [hvd.synchronize(one) for one in started][::-1]
    assert all(hvd.poll(one) and hvd.synchronize(one) is None for one in started)
    for i, one in enumerate(results):
        equal(one, torch.full((1000,), float(i * size)))
    for i in range(100):  # the memory of a dropped handle stays in use
        for start in (hvd.allreduce_async, hvd.allgather_async):
            start(torch.ones(5000), name=f"dropped.{i}")
    hvd.barrier()
    for i, one in enumerate([hvd.allgather(torch.full((2,), float(i))) for i in range(50)]):
        equal(one, torch.full((2 * size,), float(i)), "each has memory of its own")


def gradients(rank: int, size: int) -> None:
    def of(call: Callable, *tensors: Tensor) -> list[Tensor]:
        inputs = [one.clone().requires_grad_() for one in tensors]
        outputs = call(*inputs)
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        sum((one * one.detach()).sum() for one in outputs if one.is_floating_point()).backward()
        return [one.grad for one in inputs]

    own, other = torch.full((size * 2, 2), rank + 1.0), torch.full((3, 2), rank + 1.0)
    total = sum(range(1, size + 1))
    equal(of(lambda x: hvd.allreduce(x, op=hvd.Sum), own)[0], torch.full_like(own, total * size))
    for one in of(lambda *x: hvd.grouped_allreduce(x), own, other):  # of equal averages
        equal(one, torch.full_like(one, total / size))
    equal(of(hvd.allgather, own)[0], own)
    uneven = torch.full((rank, 2), rank + 1.0)
    for one, rows in zip(of(lambda *x: hvd.grouped_allgather(x), own, uneven), (own, uneven)):
        equal(one, rows)
    equal(of(lambda x: hvd.broadcast(x, 1), own)[0], own * (2.0 / 2.0 if rank == 1 else 0.0))
    broken = torch.full((2,), float("nan"))
    zeros = of(lambda x: hvd.broadcast(x, 1), broken)[0]
    assert rank == 1 or zeros.eq(0).all(), "ranks whose tensor nobody used"
    equal(of(hvd.alltoall, own)[0], own)
    equal(of(lambda x: hvd.alltoall(x, list(range(size)))[0], own)[0],
          own * (torch.arange(2 * size) < sum(range(size)))[:, None])
    equal(of(lambda x: hvd.reducescatter(x, op=hvd.Sum), own[1:])[0],
          torch.full_like(own[1:], total * size))
    equal(of(lambda x: hvd.grouped_reducescatter([x], prescale_factor=2.0), own)[0],
          torch.full_like(own, total / size * 2 * 2))


class Net(nn.Module):
    """Layers, and a parameter that nothing uses."""
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.unused = nn.Parameter(torch.ones(2))
        self.tied = self.layers[0].weight

    def forward(self, words: Tensor) -> Tensor:
        return self.layers(self.words(words)).mean()


def whole_batch(rank: int, size: int) -> None:
    """Three steps of each kind of optimizer, and of one process on all ranks' data."""
    lists = (lambda net: [list(net.layers.parameters()), [net.words.weight]])
    for options, passes, tolerance in (
            ({}, 1, 0), ({"groups": 2}, 1, 0), ({"groups": lists}, 1, 0),
            ({"backward_passes_per_step": 2}, 2, 0), ({"op": hvd.Sum}, 1, 0),
            ({"gradient_predivide_factor": 2.0}, 1, 0), ({"sparse_as_dense": True}, 1, 0),
            ({"sparse": True}, 1, 0), ({"compression": hvd.Compression.fp16}, 1, 1e-3),
            ({"compression": hvd.Compression.bf16, "groups": 1}, 1, 1e-2), ({"closure": 1}, 1, 0)):
        options = dict(options)
        sparse, closure = options.pop("sparse", False), options.pop("closure", False)
        torch.manual_seed(1)
        net = Net(sparse or options.get("sparse_as_dense", False))
        if callable(options.get("groups")):
            options["groups"] = options["groups"](net)
        alone = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0 if net.words.sparse else .9)
        plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0 if net.words.sparse else .9)
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)
        assert isinstance(optimizer, torch.optim.SGD)
        for step in range(3):
            data = torch.randint(10, (passes, size, 4), generator=torch.Generator().manual_seed(step))

            def backward() -> Tensor:
                optimizer.zero_grad()
                for i in range(passes):
                    loss = net(data[i, rank])
                    loss.backward()
                return loss

            if closure:
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
            plain.zero_grad()
            loss = sum(alone(data[i, one]) for i in range(passes) for one in range(size))
            (loss if options.get("op") == hvd.Sum else loss / size).backward()
            plain.step()
        for (name, p), (_, q) in zip(net.named_parameters(), alone.named_parameters()):
            torch.testing.assert_close(p, q, rtol=1e-4 + tolerance, atol=1e-6 + tolerance,
                                       msg=lambda text: f"{options} {name}: {text}")


def optimizer_rules(rank: int, size: int) -> None:
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    named = list(net.named_parameters())
    invalid = (
        {"named_parameters": named + [("unused", named[0][1])]}, {"named_parameters": named[:2]},
        {"named_parameters": list(net.parameters())}, {"backward_passes_per_step": 0},
        {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, {"groups": 0}, {"groups": [[1]]},
        {"groups": [[net.unused], [net.unused]]})
    for options in invalid:
        ranks.fails(lambda: hvd.DistributedOptimizer(sgd, **options), error=ValueError)
    optimizer = hvd.DistributedOptimizer(sgd)
    net(torch.arange(4)).backward()
    optimizer.set_backward_passes_per_step(1)  # what is in flight stays so
    ranks.fails(optimizer.zero_grad, "in flight", error=AssertionError)
    ranks.fails(lambda: net(torch.arange(4)).backward(), "backward_passes", error=AssertionError)
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    clipped, before = net.words.weight.grad.clone(), net.words.weight.detach().clone()
    with optimizer.skip_synchronize():
        optimizer.step()
    equal(net.words.weight.detach(), before - 0.1 * clipped)
    del optimizer  # another one of the same parameters can follow
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(sgd, net.named_parameters())
    optimizer.zero_grad()
    net(torch.full((4,), rank)).backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    hvd.shutdown()
    hvd.init()  # what was prepared is prepared again
    optimizer.zero_grad()
    net(torch.full((4,), rank)).backward()
    optimizer.step()
    weight = net.words.weight.detach()
    equal(hvd.broadcast(weight, 0), weight)


def resized_parameter(rank: int, size: int) -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
    for count in (2, 5):
        p.grad, p.data = None, torch.zeros(count)
        (p * rank).sum().backward()
        optimizer.step()
        equal(p.detach(), torch.full((count,), -(size - 1) / 2))


def adasum(rank: int, size: int) -> None:
    for data, same in ((torch.arange(4), True), (torch.full((4,), rank), False)):
        torch.manual_seed(2)
        net = Net()
        alone = copy.deepcopy(net)
        plain = torch.optim.Adam(alone.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), lr=0.1),
                                             net.named_parameters(), op=hvd.Adasum)
        for model, one in ((net, optimizer), (alone, plain)):
            model(data).backward()
            one.step()
        if same:  # a step that all ranks take is combined to itself
            for p, q in zip(net.parameters(), alone.parameters()):
                equal(p.detach(), q.detach())
        flat = nn.utils.parameters_to_vector(net.parameters()).detach()[None]
        everywhere = hvd.allgather(flat)
        equal(everywhere, flat.expand_as(everywhere))


def batch_norm(rank: int, size: int) -> None:
    ends = [0, 0, 3, 12]  # rank 0 has no sample
    own = slice(ends[rank], ends[rank + 1])
    for shape, affine in itertools.product(((12, 4), (12, 4, 3), (12, 4, 3, 2)), (True, False)):
        torch.manual_seed(1)
        batch, weights = torch.randn(shape).double() * 3 + 5, torch.randn(shape).double()
        norm = hvd.SyncBatchNorm(4, affine=affine).double()
        kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
        alone = kind(4, affine=affine).double()
        mine, whole = batch[own].clone().requires_grad_(), batch.clone().requires_grad_()
        output, expected = norm(mine), alone(whole)
        equal(output, expected[own], shape)
        (output * weights[own]).sum().backward()
        (expected * weights).sum().backward()
        equal(mine.grad, whole.grad[own], shape)
        for name, one in norm.named_buffers():
            equal(one, dict(alone.named_buffers())[name], name)
        if affine:
            equal(hvd.allreduce(norm.weight.grad, op=hvd.Sum), alone.weight.grad)
        equal(norm.eval()(batch), alone.eval()(batch))
    norm = hvd.SyncBatchNorm(4)
    ranks.fails(lambda: norm(torch.ones(int(rank == 0), 4)), "more than 1 value", error=ValueError)
    equal(norm.running_var, torch.ones(4))


def state(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 / (rank + 1))
    if rank == 1:  # the root alone has trained
        net(torch.arange(4)).backward()
        optimizer.step()
    hvd.broadcast_parameters(net.state_dict(), root_rank=1)
    hvd.broadcast_parameters(list(net.named_parameters()), root_rank=1)
    group = optimizer.param_groups[0]
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0] is group and group["lr"] == 0.05
    mine, *others = hvd.allgather_object((net.state_dict(), optimizer.state_dict()["state"]))
    assert len(others) == size - 1
    for other in others:
        for p, q in zip(mine[0].values(), other[0].values()):
            equal(p, q)
        assert mine[1].keys() == other[1].keys() and len(mine[1]) > 0
        for p, q in zip(mine[1].values(), other[1].values()):
            equal(p["exp_avg"], q["exp_avg"])
            assert p["step"] == q["step"] == 1
    assert hvd.broadcast_object({"rank": rank}, 2, name="object") == {"rank": 2}
    assert hvd.allgather_object("x" * rank) == ["", "x", "xx"]


def process_sets(rank: int, size: int) -> None:
    pair = hvd.add_process_set([2, 0])
    assert pair.ranks == [0, 2] and pair.size() == 2 and pair.included() == (rank != 1)
    ranks.fails(lambda: hvd.add_process_set([0, 2]), error=ValueError)
    if pair.included():
        assert pair.rank() == rank // 2
        equal(hvd.allreduce(torch.tensor([rank + 1.0]), process_set=pair), torch.tensor([2.0]))
        equal(hvd.broadcast(torch.tensor([rank]), 2, process_set=pair), torch.tensor([2]))
        ranks.fails(lambda: hvd.broadcast(torch.ones(1), 1, process_set=pair), error=ValueError)
        assert hvd.allgather_object(rank, process_set=pair) == [0, 2]
        equal(hvd.reducescatter(torch.ones(3), op=hvd.Sum, process_set=pair),
              torch.full((2 - rank // 2,), 2.0))
    else:
        ranks.fails(lambda: hvd.allreduce(torch.ones(1), process_set=pair), error=ValueError)
    net = nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), process_set=pair)
    nn.init.ones_(net.weight)
    net(torch.tensor([[float(rank)]])).sum().backward()
    optimizer.step()
    assert net.weight.item() == 0.0, "the average of 0 and 2, or this rank's 1"
    assert hvd.remove_process_set(pair) and pair.process_set_id is None
    assert not hvd.remove_process_set(pair) and not hvd.remove_process_set(hvd.global_process_set)
    ranks.fails(lambda: hvd.allreduce(torch.ones(1), process_set=pair), error=ValueError)
    hvd.add_process_set(pair)
    os.environ["RONDE_PROCESS_SETS"] = "0,1;0,2"  # init() takes these
    hvd.shutdown()
    assert pair.process_set_id is None, "its number will be another set's"
    sets = [hvd.ProcessSet([1, 0]), hvd.ProcessSet([1, 2])]
    hvd.init(process_sets=sets)
    assert sets[1].made() == sets[0].made() + 2, sets
    for one in sets:
        if one.included():
            assert hvd.allgather_object(rank, process_set=one) == one.ranks
    ranks.fails(lambda: hvd.add_process_set([0, 2]), "there is a process set", error=ValueError)
    assert hvd.remove_process_set(sets[0])
    hvd.add_process_set(sets[0])
    ranks.fails(lambda: hvd.allreduce(torch.ones(1), process_set=pair), "not made", error=ValueError)


def joins(rank: int, size: int) -> None:
    for batch in range(rank + 1):
        equal(hvd.allreduce(torch.ones(2), name="loss"), torch.full((2,), (size - batch) / size))
        if batch > 0:
            ranks.fails(lambda: hvd.allgather(torch.ones(1), "rows"), "join",
                        error=hvd.HorovodInternalError)
    assert hvd.join() == size - 1
    equal(hvd.allgather(torch.tensor([rank])), torch.arange(size))


def mistakes(rank: int, size: int) -> None:
    failed = functools.partial(ranks.fails, error=hvd.HorovodInternalError)
    failed(lambda: hvd.allreduce(torch.ones(3 + rank), name="shape"), "shape")
    failed(lambda: hvd.allreduce(torch.ones(3, dtype=FLOATS[rank])), "f32")
    failed(lambda: hvd.broadcast(torch.ones(3), rank))
    wrong = functools.partial(ranks.fails, error=ValueError)
    wrong(lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), "op")
    wrong(lambda: hvd.allreduce(torch.ones(1, dtype=torch.complex64).to_sparse()), "supported")
    wrong(lambda: hvd.allgather(torch.tensor(1)), "scalar")
    wrong(lambda: hvd.grouped_reducescatter([torch.ones(3), torch.tensor(1)]), "scalar")
    wrong(lambda: hvd.alltoall(torch.ones(size + 1)), "splits")
    wrong(lambda: hvd.alltoall(torch.ones(size), [2] * size), "splits")
    if rank == 0:
        first = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
        wrong(lambda: hvd.allreduce_async(torch.ones(2), name="twice"), "twice")
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    equal(first.wait(), torch.full((2,), float(size)))


def elastic(rank: int, size: int) -> None:
    """What hvd.elastic does where nothing fails, and where nobody forms new groups."""
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler, value=[rank], none=None)

    @hvd.elastic.run
    def train(state: Any, wanted: list[int]) -> list[int]:
        equal(torch.tensor(state.value), torch.tensor([0]))
        state.sampler.record_batch(0, 3)
        state.commit()
        state.value.append(1)
        state.sampler.record_indices([9])
        state.restore()
        return wanted

    assert train(state, [7]) == [7] and state.value == [0]
    assert sampler.state_dict() == {"epoch": 0, "processed_indices": set(range(9))}
    sampler.reset()
    assert list(sampler) == [9] and len(sampler) == 1  # on each rank
    sampler.record_indices([9])
    sampler.reset()
    assert list(sampler) == []
    sampler.set_epoch(rank // 2)
    assert sampler.remaining_indices == list(range(10))
    ranks.fails(state.commit, "[0, 0, 1]", error=ValueError)
    train = hvd.elastic.run(lambda state: hvd.allreduce(torch.ones(3 + rank), name="shape"))
    ranks.fails(lambda: train(state), "shape", error=hvd.HorovodInternalError)

    @hvd.elastic.run
    def interrupted(state: Any) -> None:
        raise hvd.HostsUpdatedInterrupt()

    ranks.fails(lambda: interrupted(state), error=hvd.HostsUpdatedInterrupt)


def killed(rank: int, size: int) -> tuple[str, int | None]:
    hvd.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            hvd.allreduce(torch.ones(3), name="x")
    except hvd.HorovodInternalError as error:
        try:
            hvd.shutdown()
        except hvd.HorovodInternalError:
            pass  # the same failure
        return str(error), error.failed_rank


def interrupted(rank: int, size: int) -> None:
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="x")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        ranks.fails(lambda: hvd.synchronize(handle), error=KeyboardInterrupt)
    hvd.broadcast_(torch.ones(1), 0, name="rank 0 has left its wait")
    equal(handle.wait() if rank == 0 else hvd.allreduce(torch.ones(3), name="x"), torch.ones(3))


JOB = """
import sys, torch, ronde.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(3))
if sys.argv[1] == "raises":
    if hvd.rank() == 1:
        raise KeyError("no such file")
    hvd.allreduce(torch.ones(3))
"""


class HvdTest(unittest.TestCase):
    def test_a_killed_rank_is_named(self) -> None:
        for text, rank in run(killed, expect_killed=[1])[::2]:
            self.assertIn("rank 1", text)
            self.assertEqual(rank, 1)

    def test_jobs(self) -> None:
        program = Path(hvd.__file__).parents[1] / "bin" / "ronde"
        for how, code, text in (("ends", 0, ""), ("raises", 1, "rank 1 aborted: KeyError")):
            done = subprocess.run([program, "run", "-n", "2", "--", sys.executable, "-c", JOB, how],
                                  capture_output=True, text=True, timeout=240, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(text, done.stderr)


for _one in (reductions, movements, elastic, handles, gradients, whole_batch, resized_parameter, adasum,
             batch_norm, state, process_sets, joins, mistakes):
    setattr(HvdTest, f"test_{_one.__name__}", lambda _, one=_one: run(one) and None)
for _one in (optimizer_rules, interrupted):
    setattr(HvdTest, f"test_{_one.__name__}", lambda _, one=_one: run(one, 2) and None)

if __name__ == "__main__":
    unittest.main()
