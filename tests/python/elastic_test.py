# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic in jobs of `ronde run --elastic`, against plain torch in one process.

`elastic_test.py rank FOLDER [SLOT:STEP:PLACE ...]` is one rank of such a job. That in SLOT is killed
at STEP, once, where the program calls fail() with PLACE.
"""

from __future__ import annotations

import faulthandler
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ronde
import ronde.torch as hvd

RONDE = str(Path(ronde.__file__).parent / "bin" / "ronde")
SAMPLES, BATCH, EPOCHS, RANKS = 96, 4, 2, 3  # BATCH: of a rank


class Training:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.8)

    def loss(self, indices: list[int]) -> Tensor:
        x = torch.tensor(indices).double().unsqueeze(1) * torch.arange(1, 5) * 0.37
        return nn.functional.mse_loss(self.model(torch.sin(x)), torch.cos(x[:, 1:2]))


def fail(folder: str, faults: list[str], step: int, place: str) -> None:
    fault = f"{os.environ['RANK']}:{step}:{place}"
    done = Path(folder, fault)
    if fault in faults and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def rank_main(folder: str, *faults: str) -> None:
    faulthandler.dump_traceback_later(270, exit=True)
    torch.set_num_threads(1)
    single = hvd.ProcessSet([0])
    with unittest.TestCase().assertRaisesRegex(ValueError, "elastic"):
        hvd.init(process_sets=[single])
    hvd.init()
    is_first = hvd.rank() == 0 and not any(Path(folder).iterdir())
    torch.manual_seed(1 if is_first else os.getpid())  # what others have must not matter
    training, resets = Training(), []
    names = training.model.named_parameters()
    optimizer = hvd.DistributedOptimizer(training.optimizer, named_parameters=names)
    sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=3)
    loader = torch.utils.data.DataLoader(range(SAMPLES), BATCH, sampler=sampler)
    state = hvd.elastic.TorchState(training.model, optimizer, schedule=training.schedule, epoch=0,
                                   sampler=sampler, step=0, seen=torch.zeros(SAMPLES))
    state.register_reset_callbacks([lambda: resets.append(hvd.size()),
                                    lambda: fail(folder, faults, state.step, "reset")])

    @hvd.elastic.run
    def train(state: Any, result: str) -> str:
        print(f"slot {os.environ['RANK']} is {hvd.rank()} of {hvd.size()} from step {state.step}, "
              f"resets {resets}", flush=True)
        fail(folder, faults, state.step, "enter")
        assert single.process_set_id is None  # also where there was one in the last group
        hvd.add_process_set(single)
        assert hvd.rank() > 0 or hvd.allreduce(torch.ones(1), process_set=single) == 1
        while state.epoch < EPOCHS:
            for i, batch in enumerate(loader):
                assert batch.tolist() == sampler.get_indices(i, BATCH)
                training.loss(batch.tolist()).backward()
                fail(folder, faults, state.step, "backward")
                optimizer.step()
                optimizer.zero_grad()
                training.schedule.step()
                used = torch.zeros(SAMPLES).index_add_(0, batch, torch.ones(len(batch)))
                state.seen += hvd.allreduce(used, op=hvd.Sum)
                state.sampler.record_batch(i, BATCH)
                state.step += 1
                fail(folder, faults, state.step, "commit")
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            assert state.seen.eq(state.epoch).all(), f"samples were lost or came twice: {state.seen}"
        return result

    assert train(state, "done") == "done"
    fail(folder, faults, state.step, "end")
    if hvd.rank() == 0:
        torch.save([list(training.model.parameters()), state.step], Path(folder, "result"))


def undisturbed(sizes: dict[int, int]) -> list[Any]:
    """The result of one process. ``sizes`` are numbers of ranks, by the step that begins with them."""
    torch.manual_seed(1)
    training, step, size = Training(), 0, 0
    for epoch in range(EPOCHS):
        left = list(range(SAMPLES))
        random.Random(3 + epoch).shuffle(left)
        while left:
            size = sizes.get(step, size)
            batch, left = left[:size * BATCH], left[size * BATCH:]
            training.optimizer.zero_grad()
            training.loss(batch).backward()
            training.optimizer.step()
            training.schedule.step()
            step += 1
    return [list(training.model.parameters()), step]


def run(*faults: str, options: tuple[str, ...] = (), fails: bool = False) -> tuple[list[Any], str]:
    """The result of a job, if it is to have one, and its output."""
    with tempfile.TemporaryDirectory() as folder:
        command = [RONDE, "run", "--elastic", *options, "-n", str(RANKS), "--", sys.executable,
                   "-W", "ignore", __file__, "rank", folder]
        job = subprocess.run([*command, *faults], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=280)
        assert bool(job.returncode) == fails, job.stdout
        left = [fault for fault in faults if not Path(folder, fault).exists()]
        assert not left, f"{left} did not happen: {job.stdout}"
        return [] if fails else torch.load(Path(folder, "result")), job.stdout


# ronde_reform() with room for the slots, and in the next group with too little: RONDE_E_TOO_SMALL is 10.
IN_C = """
import ctypes
from ronde import _library as c
numbers = [ctypes.c_int() for _ in range(3)]
slots = (ctypes.c_int * 2)()
for numbers[2].value in (2, 1):
    number, slot, count = [ctypes.byref(one) for one in numbers]
    code = c.lib.ronde_reform(1, number, slot, slots, count)
    print(code, [one.value for one in numbers], list(slots), flush=True)
assert c.lib.ronde_shutdown() == 0
"""


class Elastic(unittest.TestCase):
    def compare(self, result: list[Any], expected: list[Any], output: str) -> None:
        self.assertEqual(result[1], expected[1], output)
        torch.testing.assert_close(result[0], expected[0], rtol=1e-9, atol=1e-12,
                                   msg=lambda text: f"{text}\n{output}")

    def test_replaced_rank(self) -> None:
        """Rank 0, so that the replacement, which has no state, is the new rank 0."""
        result, output = run("0:5:backward", options=("--max-restarts", "1"))
        self.compare(result, undisturbed({0: 3}), output)
        self.assertIn("slot 1 is 1 of 3 from step 5, resets [3]", output)

    def test_fewer_ranks(self) -> None:
        """The others have changed their parameters, and return to the commit before."""
        result, output = run("1:3:commit")
        self.compare(result, undisturbed({0: 3, 2: 2}), output)
        self.assertIn("slot 2 is 1 of 2 from step 2, resets [2]", output)

    def test_state_is_lost(self) -> None:
        """All ranks that have it die, or one after the function's end: the job does not begin anew."""
        for faults in (["0:5:backward", "1:5:reset", "2:5:reset"], ["1:16:end"]):
            with self.subTest(faults=faults):
                output = run(*faults, options=("--max-restarts", "9"), fails=True)[1]
                # A rank whose shutdown fails as another one dies is replaced, too; later none is.
                self.assertLessEqual(output.count("gets replacement"), RANKS, output)
                self.assertIn("no rank is left that holds the state of this job", output)
                begun = re.findall(r"^\[\d\] slot \d is .* from step 0", output, re.MULTILINE)
                self.assertEqual(len(begun), RANKS, output)

    def test_in_c(self) -> None:
        job = subprocess.run([RONDE, "run", "--elastic", "-n", "2", "--", sys.executable, "-c", IN_C],
                             capture_output=True, text=True, timeout=120)
        self.assertEqual(job.returncode, 0, job.stderr)
        for slot in range(2):
            self.assertIn(f"[{slot}] 0 [1, {slot}, 2] [0, 1]", job.stdout)
            self.assertIn(f"[{slot}] 10 [2, {slot}, 2] [0, 1]", job.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(*sys.argv[2:])
    else:
        unittest.main()
