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
import time
import types
import unittest
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

    return TorchDistributed


class Results(unittest.TextTestResult):
    """Notes how each case ended."""

    def __init__(self, *arguments, marks: Path, ranks: int, **named) -> None:
        super().__init__(*arguments, **named)
        self.marks, self.ranks = marks, ranks
        self.rows: dict[str, tuple[str, float, str]] = {}
        self.begun = 0.0

    def startTest(self, test) -> None:  # noqa: N802
        self.begun = time.monotonic()
        super().startTest(test)

    def note(self, test, outcome: str, why: str = "") -> None:
        name = test.id().rsplit(".", 1)[-1]
        self.rows[name] = (outcome, time.monotonic() - self.begun, why.splitlines()[0] if why else "")

    def addSuccess(self, test) -> None:  # noqa: N802
        name = test.id().rsplit(".", 1)[-1]
        ended = sum((self.marks / f"{name}.{rank}").exists() for rank in range(self.ranks))
        if ended == self.ranks:
            super().addSuccess(test)
            self.note(test, "passed")
        else:
            error = AssertionError(f"{ended} of {self.ranks} ranks ran it to its end")
            self.addFailure(test, (AssertionError, error, None))

    def addFailure(self, test, error) -> None:  # noqa: N802
        super().addFailure(test, error)
        self.note(test, "failed", str(error[1]))

    def addError(self, test, error) -> None:  # noqa: N802
        super().addError(test, error)
        self.note(test, "failed", str(error[1]))

    def addSkip(self, test, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.note(test, "skipped", reason)


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
        loader = unittest.defaultTestLoader
        suite = unittest.TestSuite(map(case, arguments.tests or loader.getTestCaseNames(case)))
        runner = unittest.TextTestRunner(
            verbosity=2,
            resultclass=lambda *parts, **named: Results(
                *parts, marks=marks, ranks=arguments.ranks, **named
            ),
        )
        result = runner.run(suite)
    rows = sorted(result.rows.items())
    if arguments.table:
        lines = (f"{name}\t{row[0]}\t{row[1]:.1f}\t{row[2]}\n" for name, row in rows)
        arguments.table.write_text("".join(lines))
    count = {outcome: sum(row[0] == outcome for _, row in rows) for outcome in
             ("passed", "failed", "skipped")}
    print(", ".join(f"{number} {outcome}" for outcome, number in count.items()))
    return 0 if count["failed"] == 0 and count["passed"] >= arguments.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
