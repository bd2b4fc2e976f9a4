#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks elastic jobs, and compares what comes of them with undisturbed ones:

    elastic_test.py --ronde build/bin/ronde --train build/bin/elastic_train CASE [--seed 1] [--faults 20] [--ranks 3]

The program itself fails unless each sample was seen once in each epoch.
"""
import argparse
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

STEPS = 200


class Job:
    """A `ronde run`, and what it says."""

    def __init__(self, options, ranks, faults=(), steps=STEPS, words=(), elastic=True):
        self.folder = tempfile.TemporaryDirectory()
        command = [options.ronde, "run", *(["--elastic"] if elastic else []), "--grace", "3", *words, "-n", str(ranks)]
        command += ["--hosts", options.hosts, "--rsh", options.rsh] if options.hosts else []
        command += ["--", options.train, self.folder.name, str(steps), *faults]
        environment = {"RONDE_STALL_ABORT_S": "3", **os.environ, "RONDE_EXACT": "1", "OMP_NUM_THREADS": "1",
                       "RONDE_STALL_WARN_S": "1"}
        self.lines, self.times, self.changed = [], [], threading.Condition()
        self.process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.times.append(time.monotonic())
                self.changed.notify_all()

    def end(self, code=0):
        got = self.process.wait()
        self.reader.join()
        check(got == code, f"exit code {got} in place of {code}", self)
        return self

    def found(self, pattern):
        return [match for line in self.lines if (match := re.search(pattern, line))]

    def print_times(self, begin, *patterns):
        """Prints when the first lines came that have these patterns, in seconds after the moment or line `begin`."""
        def first(pattern, after):
            found = [at for line, at in zip(self.lines, self.times) if at >= after and re.search(pattern, line)]
            check(found, f"no line has {pattern}", self)
            return found[0]
        begin = begin if isinstance(begin, float) else first(begin, 0)
        print(begin, *(f"{pattern}: {first(pattern, begin) - begin:.2f} s" for pattern in patterns), sep=", ")

    def digest(self):
        digests = self.found(r"digest (\d+)")
        check(len(digests) == 1, "no digest, or several", self)
        return digests[0][1]

    def entries(self):
        """Of bodies: (slot, rank, ranks, step, process, descriptors, threads, KiB held, KiB mapped, descriptors of its launcher)."""
        pattern = (r"^\[\d+\] enters: slot (\d+) is rank (\d+) of (\d+) from step (\d+), process (\d+) with (\d+) descriptors, "
                   r"(\d+) threads, (\d+) KiB of (\d+), its launcher with (\d+) descriptors")
        return [tuple(map(int, match.groups())) for match in self.found(pattern)]


def check(holds, what, job=None):
    if not holds:
        sys.exit("\n".join([*(job.lines if job else ()), f"FAILED: {what}"]))


def compare(options, ranks, faults, words=("--max-restarts", "9"), entries=None, modes=()):
    """A job whose ranks are replaced has the bits of one that nothing disturbs."""
    wanted = Job(options, ranks, modes).end().digest()
    job = Job(options, ranks, [*modes, *faults], words=words).end()
    check(len(job.found("fails: ")) == len(faults), "not all faults have come", job)
    check(job.digest() == wanted, "other bits than undisturbed", job)
    if entries:
        check(len(job.entries()) == entries, f"{len(job.entries())} entries in place of {entries}", job)
    return job


def replaced(options):
    """Killed in the body, in its change of parameters (another rank may have done the step), by its own error."""
    faults = ["1:55:kill", "0:80:kill", "2:120:change", "1:150:throw"]
    job = compare(options, 3, faults, entries=3 * 5)
    check(all(entry[2] == 3 for entry in job.entries()), "a group was smaller", job)
    kept = {(entry[0], entry[9]) for entry in job.entries()}
    check(len(kept) == 3, f"launchers keep something of those that were replaced, by slot: {kept} descriptors", job)


def two_at_once(options):
    compare(options, 4, ["1:55:kill", "2:55:kill", "0:90:change", "3:90:change"])


def newcomer(options):
    """A replacement dies as it enters the body, and the source of its state in the same group."""
    compare(options, 3, ["1:55:kill", "1:56:enter", "0:56:enter"])


def rounds(options):
    """Killed between the steps of two optimizers: the others have changed a part of the state, and go back to a copy."""
    job = compare(options, 3, ["1:55:between", "0:80:kill", "2:120:change"], entries=3 * 4, modes=["round"])
    check(job.found(r"each round copies the state: \d+ bytes in \d+"), "the copy is not told", job)


def saving(options):
    """Killed while a checkpoint is saved; later ones are complete, and all ranks that are lost at once resume from one."""
    job = compare(options, 3, ["1:60:save", "0:100:save"], entries=3 * 3, modes=["save"])
    check(os.listdir(f"{job.folder.name}/checkpoints"), "nothing was saved", job)
    wanted = Job(options, 2, ["save"]).end().digest()
    job = lose_all(options, ["save"]).end()
    check(job.digest() == wanted, "other bits than undisturbed", job)
    check(job.entries()[-1][3] in (20, 40), "it has not gone on from a checkpoint", job)


def in_set(options):
    """Killed in an operation of a process set, of which not all ranks are members."""
    compare(options, 3, ["2:55:set", "0:80:set"], entries=3 * 3, modes=["set"])


def lose_all(options, modes):
    """Kills all ranks at once: none of them asks for another group."""
    job = Job(options, 2, [*modes, "0:50:stop"], words=("--max-restarts", "9"))
    with job.changed:
        job.changed.wait_for(lambda: ended(job) or job.found("fails: "))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for entry in job.entries():
            send(entry[4], number)
    return job


def lost(options):
    """All ranks are lost at once: a job without checkpoints does not begin anew, and tries no further restart."""
    job = lose_all(options, []).end(1)
    check(job.found("ronde run: .*no rank is left that holds the state of a whole step"), "the loss is not told", job)
    check(len(job.found("gets replacement")) == 2, "replacements of replacements were started", job)
    check(len(job.entries()) == 2, "it has begun anew", job)


def stopped(options):
    """One that is stopped is found by the stall limit, and killed."""
    job = compare(options, 2, ["1:40:stop", "0:80:stop"])
    for rank in (1, 0):
        check(job.found(f"rank {rank} has been stopped for 3 s .*: it is killed"), "its end is not told", job)
    for fault in ("1:40", "0:80"):
        job.print_times(f"fails: {fault}", "is killed", "goes on from step", "enters: ")


def woken(options):
    """Rank 0 and its agent wake up as the others have given it up: that is no cut link, and it makes the next group with them."""
    wanted = Job(options, 4, steps=500).end().digest()
    job = Job(options, 4, ["0:450:stop"], steps=500, words=("--max-restarts", "9"))
    wait_for_bodies(job, 4)
    rank = next(entry[4] for entry in job.entries() if entry[0] == 0)
    processes = (parent(rank), rank)
    send(processes[0], signal.SIGSTOP)
    with job.changed:
        job.changed.wait_for(lambda: ended(job) or len(job.found("goes on from step")) == 2)  # of the other host
    for process in processes:
        send(process, signal.SIGCONT)
    check(job.end().digest() == wanted, "other bits than undisturbed", job)
    check(job.found("group 2 of the job: 4 ranks, slots 0, 1, 2, 3"), "the next group lacks a rank", job)
    check(not job.found("is killed"), "the wrong rank is blamed", job)


def shrinks(options):
    """Without replacements the job goes on with fewer ranks, and the global batch stays."""
    job = Job(options, 4, ["2:50:kill", "0:80:change", "3:110:kill"]).end()
    sizes = sorted({entry[2] for entry in job.entries()})
    check(sizes == [1, 2, 3, 4], f"groups of {sizes} ranks", job)
    check(job.found("group 4 of the job: 1 ranks, slots 1"), "the last group is not told", job)


def below(options):
    """Fewer ranks than the job needs end it, and the first loss is told."""
    job = Job(options, 3, ["2:50:kill", "0:80:kill"], words=("--min-ranks", "2")).end(137)
    check(job.found("1 ranks are left, and the job needs 2"), "the reason is not told", job)


def kill_agent(options, **how):
    """Kills the agent of the second host, and its ranks by it, once all ranks have come; returns the job at its end."""
    job = Job(options, 4, **how)
    wait_for_bodies(job, 4)
    send(parent(next(entry[4] for entry in job.entries() if entry[0] == 3)), signal.SIGKILL)
    return job.end()


def parent(process):
    with open(f"/proc/{process}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def host_lost(options):
    """A host is lost: the job goes on with the other one."""
    job = kill_agent(options, steps=4000, words=("--max-restarts", "9"))
    check(job.found("group 2 of the job: 2 ranks, slots 0, 1"), "the host is not left out", job)


def grows(options):
    """A host that is lost and comes back gets its slots again, at the end of a step."""
    job = kill_agent(options, steps=6000, words=("--grow", "0.2"))
    check(job.found("group [0-9]+ of the job: 4 ranks, slots 0, 1, 2, 3"), "the host has not come back", job)
    check(len(job.found("has come, for slots")) == 1, "it has come several times", job)


def cut(options):
    """The link between two hosts is cut: one side goes on, and the other makes no group of its own."""
    job = Job(options, 4, steps=4000, words=("--max-restarts", "9"))
    wait_for_bodies(job, 4)
    begin = time.monotonic()
    subprocess.run(os.environ["ELASTIC_CUT"].split(), check=True)
    job.end()
    job.print_times(begin, "goes on from step", "enters: ")
    check(job.found("rank 3 is cut off from 0, 1: it is killed"), "the cut is not told", job)
    check(job.found("group 2 of the job: 2 ranks, slots 0, 1"), "the host is not left out", job)
    check(not job.found("group 2 of the job: .* slots 2"), "the other side has gone on, too", job)


def frozen(options):
    """By hand: all processes of a host are stopped, its agent too; it is lost 30 s later, and what wakes up late ends."""
    job = Job(options, 4, steps=500, words=("--max-restarts", "9"))
    wait_for_bodies(job, 4)
    ranks = [entry[4] for entry in job.entries() if entry[0] > 1]
    descriptors = [os.pidfd_open(rank) for rank in ranks]
    for process in (agent := parent(ranks[0]), *ranks):
        send(process, signal.SIGSTOP)
    begin = time.monotonic()
    wait_for_bodies(job, 6)
    for process in (agent, *ranks):
        send(process, signal.SIGCONT)
    job.end()
    job.print_times(begin, "goes on from step", "is killed", "enters: ")
    check(job.found("group 2 of the job: 2 ranks, slots 0, 1"), "the host is not left out", job)
    for descriptor in descriptors:
        select.select([descriptor], [], [])  # until it has ended


def meeting(options):
    """Killed as a group begins to meet, a survivor or a newcomer: the others meet without it, and then with its replacement."""
    wanted = Job(options, 3).end().digest()
    job = Job(options, 3, ["1:20:kill"], words=("--max-restarts", "9"))
    for number in range(2, 8):
        with job.changed:
            job.changed.wait_for(lambda: ended(job) or job.found(f"group {number} of the job"))
        agent = parent(next(entry[4] for entry in job.entries() if entry[0] == 0))  # which holds the state
        with open(f"/proc/{agent}/task/{agent}/children") as children:
            for process in map(int, children.read().split()):
                with open(f"/proc/{process}/environ", "rb") as environment:
                    if f"RANK={1 + number % 2}".encode() in environment.read().split(b"\0"):
                        send(process, signal.SIGKILL)
    check(job.end().digest() == wanted, "other bits than undisturbed", job)
    check(len(job.found("gets replacement")) == 7, "not all faults have come", job)


def drained(options):
    """A rank that is told of SIGTERM leaves after its step, and none is started in its place."""
    job = Job(options, 3, ["1:50:term"], words=("--max-restarts", "9")).end()
    check(job.found("rank 1 on .*: has left the job"), "its leave is not told", job)
    check(job.found("group 2 of the job: 2 ranks, slots 0, 2"), "the others have not gone on", job)


def reforms(options):
    """200 groups in one process: descriptors, threads and memory stay, and so do the bits."""
    entries = many_groups(options, ranks=2, groups=200)
    # The kernel may list a thread that has been joined for a moment more.
    first, last = ([min(column) for column in zip(*group)][4:7] for group in (entries[1:6], entries[-5:]))
    check(first == last, f"from {first} to {last}: process, descriptors, threads")
    # 150 groups keep some 80 KiB, which differs by 10 KiB from run to run. What they map differs by stacks of threads,
    # and the least that a group maps for itself are 2 MiB.
    held, mapped = (entries[-1][column] - entries[50][column] for column in (7, 8))
    check(held < 150 * 2, f"the last 150 groups took {held} KiB of memory")
    check(mapped < 150 * 1024, f"the last 150 groups mapped {mapped} KiB of memory")


def many_groups(options, ranks, groups, modes=()):
    """Groups that fail while all ranks live: returns the entries of slot 0."""
    faults = [f"{step % ranks}:{step}:abort" for step in range(100, 100 + groups)]
    wanted = Job(options, ranks, steps=400).end().digest()
    job = Job(options, ranks, [*modes, *faults], steps=400).end()
    check(job.digest() == wanted, "other bits than undisturbed", job)
    entries = [entry for entry in job.entries() if entry[0] == 0]
    check(len(entries) == groups + 1, f"{len(entries)} groups in place of {groups + 1}", job)
    return entries


def connections(options):
    """50 groups over two hosts in one process: the connections of those that have failed are closed."""
    entries = many_groups(options, ranks=3, groups=50)
    # Those of the last one may be there: a group takes seven descriptors.
    check(abs(entries[-1][5] - entries[1][5]) <= 2 * 7, f"from {entries[1]} to {entries[-1]}")


def buffers(options):
    """40 groups in one process fill the fusion buffers of UCX: those that have failed give them back."""
    os.environ["RONDE_CPU_BACKEND"] = "fabric"
    entries = many_groups(options, ranks=2, groups=40, modes=["large"])
    grown = entries[-1][7] - entries[5][7]
    check(grown < 2 * 64 * 1024, f"the last 35 groups took {grown} KiB of memory, and one has 65536")


def nccl(options):
    """Data on GPUs: each group has a communicator of its own, with replacements and then with fewer ranks."""
    with tempfile.TemporaryDirectory() as fakes:
        for name in ("libcuda.so.1", "libnccl.so.2"):
            os.symlink(options.gpu_library, f"{fakes}/{name}")
        os.environ.update(LD_LIBRARY_PATH=fakes, TMPDIR=fakes, RONDE_GPU_BACKEND="nccl", NCCL_MULTI_RANK_GPU_ENABLE="1")
        job = Job(options, 3, ["1:1", "2:0", "3:2"], steps=5, words=("--max-restarts", "2")).end()
    check(len(job.found("group 4 has summed by nccl over 2 ranks")) == 2, "the last group is another one", job)
    check(len(job.found("has summed")) == 2, "a group has not failed", job)


def alone(options):
    """Without --elastic the same program runs once, and a failure ends it."""
    wanted = Job(options, 2).end().digest()
    check(Job(options, 2, elastic=False).end().digest() == wanted, "other bits", Job(options, 2, elastic=False).end())
    job = Job(options, 2, ["1:50:kill"], elastic=False).end(137)
    check(len(job.entries()) == 2, "it has gone on", job)


def chaos(options):
    """Ranks are killed or stopped at random moments, one or two at a time, and some wake up late."""
    generator = random.Random(options.seed)
    steps = 600 * options.faults
    wanted = Job(options, options.ranks, steps=steps).end().digest()
    job = Job(options, options.ranks, steps=steps, words=("--max-restarts", str(2 * options.faults)))
    wait_for_bodies(job, options.ranks)
    seen, sent, limit = 0, 0, 60
    for _ in range(options.faults):
        with job.changed:
            wanted_entries = seen + options.ranks  # of a new group; none comes if a stopped rank wakes up early
            job.changed.wait_for(lambda count=wanted_entries: ended(job) or len(job.entries()) >= count, limit)
            seen = len(job.entries())
            latest = {entry[0]: entry[4] for entry in job.entries()}
        limit = 0
        for slot in generator.sample(sorted(latest), generator.choice([1, 1, 2])):
            threading.Event().wait(generator.random() / 4)  # the moment of the fault
            how = generator.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            if job.found("digest"):
                break  # one that is killed after its work fails the job
            send(latest[slot], how)
            sent += 1
            pause = 6 * generator.random() if how == signal.SIGSTOP else 60
            limit = max(limit, pause if pause < 3 else 60)
            if how == signal.SIGSTOP:
                threading.Timer(pause, send, (latest[slot], signal.SIGCONT)).start()
    job.end()
    check(job.digest() == wanted, "other bits than undisturbed", job)
    check(job.found("gets replacement"), "nothing was broken", job)
    print(f"{sent} signals, {len(job.found('gets replacement'))} replacements, {len(job.found('group [0-9]+ of the job'))} groups more")


def times(options):
    """By hand: prints the time from a kill to the first line of a survivor's next body, and of the replacement's."""
    for replacements in (0, options.faults):
        took = []
        for fault in range(options.faults):
            job = Job(options, options.ranks, steps=100000, words=("--max-restarts", str(replacements)))
            wait_for_bodies(job, options.ranks)
            threading.Event().wait(0.2)  # into the steps
            begin = time.monotonic()
            send(next(entry[4] for entry in job.entries() if entry[0] == fault % options.ranks), signal.SIGKILL)
            wait_for_bodies(job, options.ranks + 1)
            took.append(time.monotonic() - begin)
            job.process.terminate()
            job.process.wait()
            job.reader.join()
        took.sort()
        print(f"{options.ranks} ranks, {'replaced' if replacements else 'fewer'}: median "
              f"{took[len(took) // 2]:.3f} s, 95 %: {took[int(0.95 * len(took))]:.3f} s, most {took[-1]:.3f} s")


def norms(options):
    """By hand: prints the time that the ends of steps took, with the buffers of ResNet-50."""
    job = Job(options, options.ranks, ["norms"]).end()
    elastic = json.loads(job.found("stats (.*)")[0][1])["elastic"]
    print(f"{elastic['nanoseconds'] / elastic['steps'] / 1000:.1f} us a step")


def wait_for_bodies(job, count):
    with job.changed:
        job.changed.wait_for(lambda: ended(job) or len(job.entries()) >= count)


def ended(job):
    return job.process.poll() is not None


def send(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


CASES = (replaced, two_at_once, newcomer, rounds, saving, in_set, lost, stopped, woken, shrinks, below, host_lost, grows, cut, frozen,
         meeting, drained, reforms, connections, buffers, nccl, alone, chaos, times, norms)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ronde", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--hosts", help="name:slots,...; default: this one")
    parser.add_argument("--rsh", default="")
    parser.add_argument("--gpu-library", help="that stands in for CUDA's driver and NCCL")
    parser.add_argument("case", choices=[case.__name__ for case in CASES])
    options = parser.parse_args()
    next(case for case in CASES if case.__name__ == options.case)(options)


if __name__ == "__main__":
    main()
