# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed, for every dtype, against the same on one process."""

from __future__ import annotations

import threading
import unittest
from datetime import timedelta

import ranks
import torch
import torch.distributed as dist
from ranks import FLOATS, values

INTEGERS = ranks.INTEGERS + [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [torch.float8_e4m3fn, torch.float8_e5m2]
OPS = {
    dist.ReduceOp.SUM: torch.add, dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum, dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and, dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor, dist.ReduceOp.AVG: torch.add,
}
BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)


def expect_equal(actual: torch.Tensor, wanted: torch.Tensor, *what: object) -> None:
    assert actual.dtype == wanted.dtype and actual.shape == wanted.shape, (what, actual, wanted)
    same = actual.contiguous().view(torch.uint8).equal(wanted.contiguous().view(torch.uint8))
    assert same, (*what, actual, wanted)


def ops_of(dtype: torch.dtype) -> list:
    if dtype.is_complex:
        return [dist.ReduceOp.SUM, dist.ReduceOp.AVG]
    integral = dtype in INTEGERS or dtype == torch.bool
    return [op for op in OPS if (op not in BITWISE or integral)
            and (op != dist.ReduceOp.AVG or dtype != torch.bool)]


def reductions(rank: int, size: int) -> None:
    for dtype in INTEGERS + FLOATS + COMPLEX + [torch.bool]:
        whole = [values(dtype, other, size, 37) for other in range(size)]
        mine = whole[rank]
        for op in ops_of(dtype):
            total = ranks.reduced(OPS[op], whole, op == dist.ReduceOp.AVG)
            tensor = mine.clone()
            dist.all_reduce(tensor, op)
            expect_equal(tensor, total, dtype, op)
            if dtype.is_complex:
                continue  # torch passes real views of it to allreduce alone
            for root in range(size):
                tensor = mine.clone()
                dist.reduce(tensor, root, op)
                if rank == root:
                    expect_equal(tensor, total, "reduce", dtype, op)
            outputs = torch.empty(2, 37, dtype=dtype)
            dist.reduce_scatter_tensor(outputs[0], mine, op)
            dist.reduce_scatter(outputs[1], [part.clone() for part in mine], op)
            expect_equal(outputs, torch.stack([total[rank]] * 2), "reduce_scatter", dtype, op)
    factor = dist._make_nccl_premul_sum(float(rank + 2))
    tensor = torch.full((9,), 3.0)
    dist.all_reduce(tensor, factor)
    expect_equal(tensor, torch.full((9,), 3.0 * sum(range(2, size + 2))))
    ranks.fails(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND), "non-integral",
                error=ValueError)
    ranks.fails(lambda: dist.all_reduce(values(MOVED[0], 0, 3)), "moved, not computed",
                error=ValueError)


def movements(rank: int, size: int) -> None:
    for dtype in INTEGERS + FLOATS + COMPLEX + MOVED + [torch.bool]:
        inputs = [values(dtype, other, 37) for other in range(size)]
        mine, every = inputs[rank], torch.cat(inputs)
        for root in range(size):
            tensor = mine.clone()
            dist.broadcast(tensor, root)
            expect_equal(tensor, inputs[root], "broadcast")
            gathered = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
            dist.gather(mine, gathered, root)
            if rank == root:
                expect_equal(torch.cat(gathered), every, "gather")
            output = torch.empty_like(mine)
            dist.scatter(output, inputs if rank == root else None, root)
            expect_equal(output, mine, "scatter")
        gathered = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(gathered, mine)
        expect_equal(torch.cat(gathered), every, "all_gather")
        into, adjacent = torch.empty_like(every), torch.empty_like(every)
        dist.all_gather_into_tensor(into, mine)
        dist.all_gather(list(adjacent.chunk(size)), mine)  # not copied
        expect_equal(into, every, "all_gather_into_tensor")
        expect_equal(adjacent, every, "all_gather of adjacent outputs")
        sent = [values(dtype, rank + 10 * other, rank + 1) for other in range(size)]
        received = [torch.empty(other + 1, dtype=dtype) for other in range(size)]
        dist.all_to_all(received, sent)
        wanted = torch.cat([values(dtype, other + 10 * rank, other + 1) for other in range(size)])
        expect_equal(torch.cat(received), wanted, "alltoall")
        flat = torch.empty_like(wanted)
        dist.all_to_all_single(flat, torch.cat(sent), [other + 1 for other in range(size)],
                               [rank + 1] * size)
        expect_equal(flat, wanted, "all_to_all_single")
        to, source = (rank + 1) % size, (rank - 1) % size
        output = torch.empty_like(mine)
        work = dist.isend(mine, to, tag=3)
        dist.recv(output, source, tag=3)
        work.wait()
        expect_equal(output, inputs[source], "recv")


def shapes(rank: int, size: int) -> None:
    """Uneven lists, empty and noncontiguous tensors, rows of several elements."""
    outputs = [torch.empty(other + 1) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    expect_equal(torch.cat(outputs), torch.arange(float(size)).repeat_interleave(torch.arange(size) + 1))
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.ones(other + 1) * rank for other in range(size)])
    expect_equal(output, torch.ones(rank + 1) * sum(range(size)))
    ranks.fails(lambda: dist.reduce_scatter(torch.empty(3, 2).t(), [torch.ones(2, 3 + other)
                for other in range(size)]), "contiguous", error=ValueError)
    whole = torch.zeros(2 * (size - 1))
    parts = [whole[len(whole):], *whole.chunk(size - 1)]  # the first is empty, and behind the rest
    dist.all_to_all(parts, [torch.full((2 if rank else 0,), float(rank)) for _ in range(size)])
    expect_equal(whole, torch.arange(1.0, size).repeat_interleave(2))
    dist.all_reduce(torch.empty(0))
    columns = [torch.empty(3, 2).t() for _ in range(size)]
    dist.all_gather(columns, torch.full((3, 2), float(rank)).t())
    expect_equal(torch.stack(columns), torch.arange(float(size)).view(-1, 1, 1).expand(-1, 2, 3))
    ranks.fails(lambda: dist.all_reduce(torch.ones(6, 6)[:, ::2]), "contiguous", error=ValueError)
    rows = torch.full((size * 2, 3), float(rank))
    output = torch.empty_like(rows)
    dist.all_to_all_single(output, rows)
    expect_equal(output, torch.arange(float(size)).repeat_interleave(6).view(-1, 3))
    image = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    total = image.clone() * size
    dist.all_reduce(image)
    assert torch.allclose(image, total)


def messages(rank: int, size: int) -> None:
    outputs = [torch.full((3,), float(rank)) for _ in range(size)]
    operations = []
    for other in set(range(size)) - {rank}:
        operations.append(dist.P2POp(dist.isend, torch.full((3,), float(rank)), other))
        operations.append(dist.P2POp(dist.irecv, outputs[other], other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    expect_equal(torch.stack(outputs), torch.arange(float(size)).view(-1, 1).expand(-1, 3))


def works(rank: int, size: int) -> None:
    """Handles, futures whose callbacks wait for other futures, coalescing, sequence numbers."""
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == "ronde"
    before = backend._get_sequence_number_for_group()

    def again(future: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    tensors = [torch.ones(1000) for _ in range(16)]
    futures = [dist.all_reduce(tensor, async_op=True).get_future() for tensor in tensors]
    chained = dist.all_reduce(torch.ones(5), async_op=True).get_future().then(again)
    expect_equal(chained.wait(), torch.full((5,), float(size * size)))
    torch.futures.wait_all(futures)
    assert backend._get_sequence_number_for_group() == before + 18
    work = dist.all_reduce(tensors[0], async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success() and work.result()[0] is not None
    assert work.get_future().done()
    outputs = [torch.zeros(size * 2) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, torch.full((2,), float(rank + i)))
    manager.wait()
    for i, output in enumerate(outputs):
        expect_equal(output, (torch.arange(float(size)) + i).repeat_interleave(2))
    for tensor in tensors[:3]:
        tensor.fill_(1.0)
    with dist._coalescing_manager(device=torch.device("cpu")):  # one list of calls in another
        for tensor in tensors[:3]:
            dist.all_reduce(tensor)
    expect_equal(tensors[2], torch.full((1000,), float(size)))


def groups(rank: int, size: int) -> None:
    """Groups in any order and in two threads, split, symmetric memory, the barrier with names."""
    first = dist.new_group([0, 1])
    second = dist.new_group(list(reversed(range(size))))
    third = dist.new_group([size - 1])
    assert (rank == size - 1) == (third is not dist.GroupMember.NON_GROUP_MEMBER)
    totals = {}

    def add(group: dist.ProcessGroup, key: int) -> None:
        for _ in range(50):
            tensor = torch.ones(100)
            dist.all_reduce(tensor, group=group)
        totals[key] = tensor[0].item()

    both = [threading.Thread(target=add, args=(group, key))
            for key, group in enumerate((first, second)) if dist.get_rank(group) >= 0]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert totals == ({0: 2.0, 1: size} if rank < 2 else {1: size}), totals
    default = dist.distributed_c10d._get_default_group()
    part = default.split_group([0, 1])
    if rank < 2:
        tensor = torch.ones(3)
        part.allreduce([tensor]).wait()
        expect_equal(tensor, torch.full((3,), 2.0))
    cpu = torch.device("cpu")
    backend = default._get_backend(cpu)
    assert backend.supports_tensor_alloc(cpu)
    held = [backend.allocate_tensor(1000, dtype=torch.float32, device=cpu) for _ in range(2)]
    del held[rank % 2]  # the free places differ now
    for _ in range(2):
        held.append(backend.allocate_tensor(500, dtype=torch.float32, device=cpu))
        held[-1].fill_(rank + 1)
        dist.all_reduce(held[-1])
        expect_equal(held[-1], torch.full((500,), float(sum(range(1, size + 1)))))
    default.monitored_barrier(timedelta(seconds=20))
    dist.barrier()
    if rank == 0:
        ranks.fails(lambda: default.monitored_barrier(timedelta(seconds=0.3), True),
                    ", ".join(map(str, range(1, size))) + " failed to pass monitoredBarrier")
    dist.barrier()


class Collectives(unittest.TestCase):
    test_works = ranks.case(works)


for _one in (reductions, movements, shapes, messages, groups):
    setattr(Collectives, f"test_{_one.__name__}", ranks.case(_one, ranks=3))

if __name__ == "__main__":
    unittest.main()
