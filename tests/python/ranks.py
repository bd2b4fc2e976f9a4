# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a process forked from this one, which has torch loaded.

Also what the tests of collectives give and expect.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

# What programs of the tests import, once for all ranks: the first needs 20 s.
import torch
import torch._dynamo  # by optimizers
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.parallel  # noqa: F401

_FORK = multiprocessing.get_context("fork")
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class Failure(AssertionError):
    """What went wrong on the ranks."""


def init(rank: int, size: int, folder: str, backend: str = "ronde", **options: Any) -> None:
    """init_process_group() through a file in `folder`."""
    store = dist.FileStore(str(Path(folder, options.pop("store", "store"))), size)
    options.setdefault("timeout", timedelta(seconds=60))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **options)


def _main(function: Callable, rank: int, size: int, folder: str, deadline: float, start: bool,
          arguments: Sequence[Any], results: Any) -> None:
    faulthandler.dump_traceback_later(deadline * 0.9, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        if start:
            init(rank, size, folder)
            result = function(rank, size, *arguments)
            dist.destroy_process_group()
        else:
            result = function(rank, size, folder, *arguments)
        results.send(("result", result))
    except BaseException:
        results.send(("error", traceback.format_exc()))
    results.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of what the parent has loaded are the parent's


def run(function: Callable, *arguments: Any, ranks: int = 2, deadline: float = 60,
        start: bool = True, expect_killed: Sequence[int] = ()) -> list[Any]:
    """Returns the results of function(rank, size, *arguments) of each rank.

    Process groups are made before it and destroyed after it, unless `start` is False: the function
    then gets the folder of a store as its third argument. Raises Failure where a rank raises, has
    not ended after `deadline` seconds, or has died, unless it is among `expect_killed`.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank in range(ranks):
            mine, theirs = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=_main, args=(
                function, rank, ranks, folder, deadline, start, arguments, theirs))
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(mine)
        end = time.monotonic() + deadline
        results, problems = [None] * ranks, []
        for rank, (process, pipe) in enumerate(zip(processes, pipes)):
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    problems.append(f"rank {rank} has not ended after {deadline} s")
                    continue
                kind, results[rank] = pipe.recv()
                if kind == "error":
                    problems.append(f"rank {rank}: {results[rank]}")
            except EOFError:
                if rank not in expect_killed:
                    problems.append(f"rank {rank} died")
        for process in processes:
            process.join(0 if problems else 10)
            if process.is_alive():
                process.kill()
                process.join()
        if problems:
            raise Failure("\n".join(problems))
        return results


def fails(function: Callable, *texts: str, error: type = RuntimeError) -> str:
    """Calls it, expects that it raises `error` with all `texts` in it, and returns the text."""
    try:
        function()
    except error as raised:
        missing = [text for text in texts if text not in str(raised)]
        if missing:
            raise AssertionError(f"{missing} not in: {raised}") from raised
        return str(raised)
    raise AssertionError("nothing was raised")


def case(function: Callable, *arguments: Any, **options: Any) -> Callable:
    """A method of a TestCase that calls run()."""
    return lambda _: run(function, *arguments, **options) and None


def values(dtype: torch.dtype, rank: int, *shape: int) -> torch.Tensor:
    """Small numbers of a rank, whose sums and products every dtype can hold."""
    numbers = (torch.arange(torch.Size(shape).numel()) * 7 + rank * 3) % 4 + rank % 2
    if dtype == torch.bool:
        numbers = numbers % 2 == 0
    real = numbers.double()
    whole = torch.complex(real, real + 1) if dtype.is_complex else real
    return whole.to(dtype).view(shape)


def reduced(function: Callable, inputs: Sequence[torch.Tensor], averages: bool) -> torch.Tensor:
    """What a reduction of small numbers gives, to the last bit."""
    dtype = inputs[0].dtype
    is_exact = not (dtype.is_complex or dtype.is_floating_point)
    wide = torch.complex128 if dtype.is_complex else torch.int64 if is_exact else torch.float64
    total = functools.reduce(function, [one.to(wide) for one in inputs])
    if averages:
        parts = torch.view_as_real(total) if dtype.is_complex else total
        parts.div_(len(inputs), rounding_mode="trunc" if is_exact else None)
    return total.to(dtype)
