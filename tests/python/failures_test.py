# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on ranks becomes PyTorch's exceptions, with Ronde's cause, and nothing hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from datetime import timedelta
from pathlib import Path
from unittest import mock

import ranks
import torch
import torch.distributed as dist

SHORT = timedelta(seconds=0.5)


def expect_alive() -> None:
    """The group works."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size()


def killed(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(10))
    work = dist.all_reduce(torch.ones(10), async_op=True) if rank != 1 else None
    future = work.get_future() if work else None
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    ranks.fails(work.wait, "rank 1", error=dist.DistBackendError)
    ranks.fails(future.wait, "rank 1")
    ranks.fails(lambda: dist.barrier(), "rank 1", error=dist.DistBackendError)
    assert time.monotonic() - begun < 10
    assert not work.is_success()


def leaves(rank: int, size: int, folder: str) -> None:
    ranks.init(rank, size, folder)
    if rank == 1:
        return  # the process ends without destroying its group
    ranks.fails(lambda: dist.all_reduce(torch.ones(3)), "rank 1", error=dist.DistBackendError)
    dist.destroy_process_group()


def mismatched(rank: int, size: int) -> None:
    """Refusals of one operation; the group goes on."""
    ranks.fails(lambda: dist.all_reduce(torch.ones(3 + rank)), "rank 0", "rank 1",
                error=dist.DistBackendError)
    ranks.fails(lambda: dist.all_gather_into_tensor(torch.ones(2 * (3 + rank)), torch.ones(3 + rank)))
    ranks.fails(lambda: dist.broadcast(torch.ones(3, dtype=torch.float64 if rank else torch.float32), 0))
    ranks.fails(lambda: dist.all_reduce(torch.ones(3)) if rank else dist.barrier())
    ranks.fails(lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(3)), "world_size",
                error=ValueError)
    # Rank 1 sends rank 0 a row fewer than that expects.
    sent = [2, 2] if rank == 0 else [1, 3]
    try:
        dist.all_to_all_single(torch.empty(4), torch.ones(4), [2, 2], sent)
        assert rank == 1
    except RuntimeError as error:
        assert "rows" in str(error), error
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    ranks.fails(work.result, "rank 0", error=dist.DistBackendError)
    sparse = torch.sparse_coo_tensor([[1]], [1.0], (3 + rank,))  # the index is valid on all ranks
    ranks.fails(lambda: dist.all_reduce(sparse), "differ in their size", error=ValueError)
    expect_alive()


def late(rank: int, size: int, folder: str) -> None:
    """The time-out of a group, of a wait, and what works afterwards."""
    ranks.init(rank, size, folder, timeout=SHORT)
    if rank == 0:
        begun = time.monotonic()
        ranks.fails(lambda: dist.all_reduce(torch.ones(3)), "timed out", "rank 1",
                    error=dist.DistBackendError)
        ranks.fails(lambda: dist.recv(torch.ones(3), 1), "timed out", error=dist.DistBackendError)
        assert 0.9 < time.monotonic() - begun < 10
        work = dist.irecv(torch.ones(3), 1)
        ranks.fails(lambda: work.wait(timedelta(seconds=0.1)), "Timed out waiting 100ms",
                    error=dist.DistBackendError)
        Path(folder, "late").touch()
    while not Path(folder, "late").exists():
        time.sleep(0.02)
    if rank == 1:
        ranks.fails(lambda: dist.all_reduce(torch.ones(3)), "timed out", error=dist.DistBackendError)
    group = dist.distributed_c10d._get_default_group()
    group.set_timeout(timedelta(seconds=30))
    expect_alive()
    dist.destroy_process_group()


def patient(rank: int, size: int, folder: str) -> None:
    """Ronde's own limit is above the longest time-out that a rank gives a group, later too, or a call."""
    os.environ["RONDE_PROFILE"] = str(Path(folder, "run.json"))
    ranks.init(rank, size, folder, timeout=timedelta(hours=4 if rank == 1 else 2))
    dist.barrier()
    later = dist.new_group(timeout=timedelta(hours=2))
    later.set_timeout(timedelta(hours=5))
    later.set_timeout(timedelta(seconds=30))  # operations may still have the longer one
    of_call = dist.new_group(timeout=timedelta(hours=2))
    of_call.monitored_barrier(timedelta(hours=7 if rank == 1 else 6))
    dist.destroy_process_group()
    if rank == 0:
        runs = [json.loads(profile.read_text()) for profile in Path(folder).glob("run.c10d.*.json")]
        assert [run["config"]["RONDE_STALL_ABORT_S"] for run in runs] == ["7260"] * 3, runs
        limits = [[one["counters"]["coordinator"]["stall_limit_s"] for one in run["per_rank"]] for run in runs]
        assert sorted(limits) == [[hours * 3600 + 60] * size for hours in (4, 5, 7)], limits


def interrupted(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    for wait in (lambda: dist.recv(torch.ones(3), 1), lambda: group.monitored_barrier(timedelta(seconds=50))):
        if rank == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            ranks.fails(wait, error=KeyboardInterrupt)
        expect_alive()


FUTURES = """
import torch, torch.distributed as dist, ronde.distributed
dist.init_process_group("ronde", store=dist.HashStore(), rank=0, world_size=1)
group, opts = dist.distributed_c10d._get_default_group(), dist.AllreduceOptions()
for _ in range(1000):
    group.allreduce([torch.ones(1)], opts).get_future()
"""


class Numbers(torch.utils.data.Dataset):
    """Tries to use the process group in a worker of a DataLoader."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, str]:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            return index, str(error)
        return index, ""


def forked(rank: int, size: int) -> None:
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, collate_fn=list)
    dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    for ((_, text),) in loader:
        assert "fork" in text, text
    expect_alive()


def again(rank: int, size: int, folder: str) -> None:
    """Destroy and init, over one store; init twice; a group that is gone."""
    port = Path(folder, "port")
    while rank > 0 and not port.exists():
        time.sleep(0.02)
    store = dist.TCPStore("localhost", int(port.read_text()) if rank else 0, size, rank == 0,
                          wait_for_workers=False)
    if rank == 0:
        Path(folder, "new").write_text(str(store.port))
        Path(folder, "new").rename(port)

    def init() -> None:
        dist.init_process_group("ronde", store=store, rank=rank, world_size=size)

    def own_backend() -> dist.Backend:
        return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))

    for _ in range(3):
        init()
        ranks.fails(init, "twice", error=ValueError)
        expect_alive()
        backend = own_backend()
        dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
        work = dist.all_reduce(torch.ones(2), async_op=True)
        dist.destroy_process_group()
        opts = dist.AllreduceOptions()
        ranks.fails(lambda: backend.allreduce([torch.ones(2)], opts), error=dist.DistBackendError)
        del backend
        assert work.get_future().wait()[0][0] == size
    init()
    if rank == 1:
        own_backend().abort()
    ranks.fails(lambda: dist.barrier(), "abort", error=dist.DistBackendError)
    dist.destroy_process_group()
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < size:
        time.sleep(0.02)


def missing(rank: int, size: int, folder: str) -> None:
    """A rank that never comes."""
    os.environ["RONDE_INIT_TIMEOUT_S"] = "1"
    if rank == 1:
        return
    store = dist.FileStore(str(Path(folder, "store")), size)
    begun = time.monotonic()
    ranks.fails(lambda: dist.init_process_group("ronde", store=store, rank=0, world_size=size),
                "rank(s) 1", error=dist.DistBackendError)
    assert time.monotonic() - begun < 20


class Failures(unittest.TestCase):
    test_killed_rank = ranks.case(killed, ranks=3, expect_killed=[1])
    test_rank_that_leaves = ranks.case(leaves, start=False)
    test_mismatches = ranks.case(mismatched)
    test_timeouts = ranks.case(late, start=False)
    test_patience = ranks.case(patient, start=False)
    test_interrupt = ranks.case(interrupted)
    test_fork = ranks.case(forked)
    test_again = ranks.case(again, start=False)
    test_missing_rank = ranks.case(missing, start=False)

    def test_end_of_a_program_with_futures(self) -> None:
        for _ in range(3):  # a thread of the group that wanted the GIL then aborted most of them
            subprocess.run([sys.executable, "-c", FUTURES], check=True, timeout=60)

    def test_other_torch(self) -> None:
        import ronde._built_with
        import ronde._plugin

        with mock.patch.object(ronde._built_with, "TORCH", "1.2.0"):
            ranks.fails(ronde._plugin._expect_built_for_this_torch, "torch 1.2 ", "pip install")

    def test_register_twice_and_never_raise(self) -> None:
        import ronde._plugin

        ronde._plugin.register()
        assert dist.Backend.RONDE == "ronde"
        with mock.patch.object(sys, "stderr") as stderr, \
                mock.patch.object(dist.Backend, "register_backend", side_effect=OSError("broken")):
            ronde._plugin.register()
        assert "broken" in str(stderr.write.call_args)


if __name__ == "__main__":
    unittest.main()
