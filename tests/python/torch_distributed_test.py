#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own DistributedTest, which is part of its wheel, over a backend.

    torch_distributed_test.py [--backend ronde] [--ranks 3] [--at-least N] [--table FILE] [CASE...]

PyTorch's cases ask for the names of the backends that it knows ("only gloo supports ..."). The
loader changes these gates as it reads the file, so that "ronde" passes those for gloo, and the
cases of alltoall that only MPI may run. Ranks are forked from this process, which has imported
everything that they need. A case counts as passed only if every rank has run it to its end.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import types
import unittest
from collections import Counter
from datetime import timedelta
from pathlib import Path

# Each changes names of backends in gates, never a check of results.
GATES = (
    (r'BACKEND != "gloo"', 'BACKEND not in ("gloo", "ronde")'),
    (r'BACKEND == "gloo"', 'BACKEND in ("gloo", "ronde")'),
    (r'BACKEND != "mpi"', 'BACKEND not in ("mpi", "ronde")'),
    (r'require_backend_is_available\(\{"gloo"\}\)',
     'require_backend_is_available({"gloo", "ronde"})'),
    (r"(PROFILING_SUPPORTED_BACKENDS = \[)", r'\1 "ronde",'),
)

# Not a gate of the tests' but a fact of torch's.
IMPOSSIBLE = {"test_ddp_logging_data_cpu": "DDP's log calls every backend of a plugin 'custom'"}


def monitored_barrier(group=None, timeout=timedelta(minutes=5), wait_all_ranks=False) -> None:
    from torch import distributed

    if group is not distributed.GroupMember.NON_GROUP_MEMBER:
        (group or distributed.group.WORLD).monitored_barrier(timeout, wait_all_ranks)


def load(backend: str) -> types.ModuleType:
    """Returns PyTorch's module of tests, with gates that let `backend` pass."""
    import torch.distributed
    from torch.testing._internal import common_distributed

    for feature in ("cuda", "ddp", "gpu", "plugin", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add(backend)
    path = Path(common_distributed.__file__).parent / "distributed" / "distributed_test.py"
    source = path.read_text()
    for pattern, replacement in GATES:
        source, count = re.subn(pattern, replacement, source)
        if count == 0:
            raise SystemExit(f"torch's tests have changed: {path} has no {pattern}")
    module = types.ModuleType("ronde_distributed_test")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    if backend != "gloo":
        torch.distributed.monitored_barrier = monitored_barrier  # torch's own asks for gloo by name
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return module


def make_case(module: types.ModuleType, marks: Path, backend: str) -> type:
    import torch.multiprocessing

    class TorchDistributed(module.TestDistBackend, module.DistributedTest._DistTestBase):
        """PyTorch's cases; each rank that ends one leaves a mark."""

        def setUp(self) -> None:
            super().setUp()
            if backend != "gloo" and self._testMethodName in IMPOSSIBLE:
                self.skipTest(IMPOSSIBLE[self._testMethodName])
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def run_test(self, test_name: str, parent_pipe) -> None:
            super().run_test(test_name, parent_pipe)  # ends the process if it fails or is skipped
            (marks / f"{test_name}.{self.rank}").touch()

        def _check_return_codes(self, fn, elapsed_time: float) -> None:
            super()._check_return_codes(fn, elapsed_time)  # raises if a rank fails or skips it
            ended = len(list(marks.glob(f"{self._testMethodName}.*")))
            if ended < int(self.world_size):
                self.fail(f"{ended} of {self.world_size} ranks ran it to its end")

    return TorchDistributed


def outcomes_of(suite: unittest.TestSuite) -> dict[str, tuple[str, str]]:
    """Runs the cases. Returns how each ended, and why."""
    outcomes = {test._testMethodName: ("passed", "") for test in suite}
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    for test, why in result.skipped:
        outcomes[test._testMethodName] = ("skipped", why)
    for test, trace in result.failures + result.errors:
        error = next(line for line in trace.splitlines()[1:] if not line.startswith(" "))
        outcomes[getattr(test, "test_case", test)._testMethodName] = ("failed", error)
    return outcomes


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", help="names of cases; all without them")
    parser.add_argument("--backend", default="ronde")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--at-least", type=int, default=1, help="fail if fewer cases pass")
    parser.add_argument("--table", type=Path, help="writes the outcome of each case to this file")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    os.environ.update(BACKEND=arguments.backend, WORLD_SIZE=str(arguments.ranks))
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder, "marks")
        marks.mkdir()
        os.environ["TEMP_DIR"] = folder
        case = make_case(load(arguments.backend), marks, arguments.backend)
        names = arguments.tests or unittest.defaultTestLoader.getTestCaseNames(case)
        outcomes = outcomes_of(unittest.TestSuite(map(case, names)))
    if arguments.table:
        lines = (f"{name}\t{outcome}\t{why}\n" for name, (outcome, why) in sorted(outcomes.items()))
        arguments.table.write_text("".join(lines))
    count = Counter(outcome for outcome, _ in outcomes.values())
    print(", ".join(f"{count[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped")))
    return 0 if count["failed"] == 0 and count["passed"] >= arguments.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
