# SPDX-License-Identifier: Apache-2.0
"""Measures allreduces from Python, over several ways in turns, between ranks of this machine.

    python -m ronde.bench                                   Ronde and gloo, 4 B to 64 MiB
    python -m ronde.bench --ways c++ hvd ronde mpi4py --sizes 4 --gradients
                                                            what Python adds to C++

The ways are the backends of torch.distributed (`ronde`, `gloo`), Horovod's calls (`hvd`), Ronde's
own `ronde bench` (`c++`), and `mpi4py`, with numpy and built for the MPI of the mpiexec in PATH
(`pip install --no-binary mpi4py mpi4py`). Those in Python take turns within one pair of processes,
round by round; the others run before and after them. Each number is a median over the rounds, in
microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

OUTSIDE = ("c++", "mpi4py")
# A call of each size, in as many iterations as move about this many bytes in a round.
BYTES_A_ROUND = 64 << 20
Series = dict[str, list[float]]


def resnet50_sizes() -> list[int]:
    """The elements of ResNet-50's 161 parameters, last to first."""
    sizes = [64 * 3 * 49, 64, 64]
    channels = 64
    for layer, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << layer
        for block in range(blocks):
            for count, rows in ((channels * width, width), (width * width * 9, width),
                                (width * 4 * width, 4 * width)):
                sizes += [count, rows, rows]
            if block == 0:
                sizes += [channels * 4 * width, 4 * width, 4 * width]
            channels = 4 * width
    return (sizes + [channels * 1000, 1000])[::-1]


def iterations_of(bytes_: int) -> int:
    return max(1, min(500, BYTES_A_ROUND // max(bytes_, 1)))


def make_subject(way: str) -> Callable[[Sequence], None]:
    """Returns a function that sums the given tensors over the ranks in place, and waits."""
    if way == "hvd":
        import ronde.torch as hvd

        hvd.init()

        def run(tensors: Sequence) -> None:
            handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=str(i)) for i, t in enumerate(tensors)]
            for handle in handles:
                hvd.synchronize(handle)

        return run
    import torch.distributed as dist

    group = dist.new_group(backend=way)

    def run_group(tensors: Sequence) -> None:
        if len(tensors) == 1:
            dist.all_reduce(tensors[0], group=group)
            return
        for work in [dist.all_reduce(t, group=group, async_op=True) for t in tensors]:
            work.wait()

    return run_group


def time_rounds(ways: Sequence[str], shapes: Sequence[Sequence[int]], rounds: int) -> list[Series]:
    """Returns the microseconds of a call, by shape and way, one number a round."""
    import torch
    import torch.distributed as dist

    subjects = {way: make_subject(way) for way in ways}
    results: list[Series] = []
    for shape in shapes:
        tensors = [torch.ones(count) for count in shape]
        count = iterations_of(4 * sum(shape))
        series: Series = {way: [] for way in ways}
        for number in range(rounds + 1):  # the first one warms up
            for way, subject in subjects.items():
                for tensor in tensors:
                    tensor.fill_(1)
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(count):
                    subject(tensors)
                if number > 0:
                    series[way].append(1e6 * (time.perf_counter() - begin) / count)
        results.append(series)
    return results


def rank_main(rank: int, options: argparse.Namespace, folder: str) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.ranks),
                      LOCAL_WORLD_SIZE=str(options.ranks), MASTER_ADDR="localhost",
                      MASTER_PORT=str(options.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ways = [way for way in options.ways if way not in OUTSIDE]
    results = time_rounds(ways, options.shapes, options.rounds)
    if rank == 0:
        Path(folder, "results").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def measure_cpp(options: argparse.Namespace, shape: Sequence[int], folder: str) -> float:
    """Returns what `ronde bench` measures."""
    rows = Path(folder, "rows.json")
    what = (["exchange", "--model", "resnet50", "--no-baseline"] if len(shape) > 1 else
            ["allreduce", "--min", str(4 * shape[0]), "--max", str(4 * shape[0])])
    program = shutil.which("ronde", path=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if program is None:
        raise SystemExit("ronde.bench: the command ronde is not in PATH; without it leave out c++")
    subprocess.run([program, "run", "-n", str(options.ranks), "--", program, "bench", *what,
                    "--json", str(rows)], check=True, stdout=subprocess.DEVNULL)
    row = json.loads(rows.read_text())[0]
    return row["p50_us"] if len(shape) == 1 else 1000 * row["p50_ms"]


def measure_mpi4py(options: argparse.Namespace, shape: Sequence[int]) -> float:
    program = (
        "import sys, time, numpy\nfrom mpi4py import MPI\n"
        "sizes = [int(s) for s in sys.argv[2:]]; count = int(sys.argv[1])\n"
        "buffers = [numpy.ones(s, 'f') for s in sizes]; comm = MPI.COMM_WORLD\n"
        "times = []\n"
        "for _ in range(7):\n"
        "    comm.Barrier(); begin = time.perf_counter()\n"
        "    for _ in range(count):\n"
        "        MPI.Request.Waitall([comm.Iallreduce(MPI.IN_PLACE, b) for b in buffers]) "
        "if len(buffers) > 1 else comm.Allreduce(MPI.IN_PLACE, buffers[0])\n"
        "    times.append((time.perf_counter() - begin) / count)\n"
        "if comm.rank == 0: print(1e6 * sorted(times)[3])\n")
    command = ["mpiexec", "-n", str(options.ranks), sys.executable, "-c", program,
               str(iterations_of(4 * sum(shape))), *map(str, shape)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"ronde.bench: mpi4py's program above ended with {ended.returncode}; it needs "
                         "numpy and the MPI of the mpiexec in PATH")
    return float(ended.stdout)


def measure_outside(options: argparse.Namespace, folder: str, results: list[Series]) -> None:
    """Adds a number to each series of a way that is a program of its own."""
    for shape, series in zip(options.shapes, results):
        if "c++" in options.ways:
            series.setdefault("c++", []).append(measure_cpp(options, shape, folder))
        if "mpi4py" in options.ways:
            series.setdefault("mpi4py", []).append(measure_mpi4py(options, shape))


def print_table(options: argparse.Namespace, results: list[Series]) -> None:
    print(f"{options.ranks} ranks, medians of {options.rounds} rounds, us a call (times the first way)")
    print(f"{'bytes':>12}" + "".join(f"{way:>20}" for way in options.ways))
    for shape, series in zip(options.shapes, results):
        first = statistics.median(series[options.ways[0]])
        cells = (statistics.median(series[way]) for way in options.ways)
        title = str(4 * shape[0]) if len(shape) == 1 else f"{len(shape)} gradients"
        print(f"{title:>13}" + "".join(f"{cell:>12.1f} ({cell / first:4.1f})" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ronde.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--ways", nargs="+", default=["ronde", "gloo"],
                        help="ronde, gloo, hvd, c++, mpi4py; ratios are to the first")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="*", metavar="BYTES",
                        default=[4, 4096, 65536, 1 << 20, 64 << 20])
    parser.add_argument("--gradients", action="store_true",
                        help="also the 161 gradients of ResNet-50, started one by one, then waited for")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--port", type=int, default=29517, help="of torch's rendezvous")
    options = parser.parse_args()
    options.shapes = [[max(1, size // 4)] for size in options.sizes]
    if options.gradients:
        options.shapes.append(resnet50_sizes())
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        before: list[Series] = [{} for _ in options.shapes]
        measure_outside(options, folder, before)
        torch.multiprocessing.spawn(rank_main, (options, folder), nprocs=options.ranks)
        results = json.loads(Path(folder, "results").read_text())
        for series, others in zip(results, before):
            series.update(others)
        measure_outside(options, folder, results)
    print_table(options, results)


if __name__ == "__main__":
    main()
