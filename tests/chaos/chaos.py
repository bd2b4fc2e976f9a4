#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks a job of `ronde run` at random moments, and compares what comes of it with an undisturbed run:

    chaos.py --ronde build/bin/ronde --hosts localhost:3 --faults 20 --seed 1 -- PROGRAM {folder} ...

PROGRAM saves checkpoints in {folder} and resumes from them. Faults, one at a time: of a rank (kill, stop,
slow: stopped for a moment), of the agent that starts the ranks of a host (agent), of the whole job (leave:
SIGTERM, as where a cluster takes its hosts back), a full disk (disk: the folder is a small tmpfs then), and with
--spaces, the network namespaces of the hosts: cut, drop, slow-link. With --resize, hosts go and come back (shrink,
grow). Each must be told with the right culprit, and the job must go on by itself.

At the end the newest checkpoint has the bits of the undisturbed run; with --resize, its loss is as good.
Nothing may be left behind. Prints a table: the seconds from a fault to the launcher's line about it, and
to the next checkpoint.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ENDS = ("kill", "stop", "agent", "cut", "shrink", "grow")  # the job, which is started again
PASSES = ("slow", "disk", "drop", "slow-link")
PATIENCE = 90  # seconds until a fault must be told, or the job must go on


class Chaos(Exception):
    """What must not be."""


def newest(folder):
    """The newest complete checkpoint, as (sequence, step, path)."""
    best = (0, 0, None)
    for entry in os.scandir(folder):
        found = re.fullmatch(r"(\d+)-step-(\d+)-[0-9a-f]+", entry.name)
        if found and os.path.exists(os.path.join(entry.path, "manifest.json")):
            best = max(best, (int(found[1]), int(found[2]), entry.path))
    return best


def checksums(folder):
    """Of the tensors in the newest checkpoint, but for the random generators: they depend on the ranks."""
    all_entries = {}
    for index in pathlib.Path(newest(folder)[2]).glob("part-*.json"):
        for entry in json.loads(index.read_text())["entries"]:
            if not entry.get("type") and not entry["name"].startswith("random/"):
                all_entries[entry["name"]] = entry["checksum"]
    return all_entries


class Job:
    """A `ronde run`, and what it says."""

    def __init__(self, options, folder, hosts_file, restarts):
        self.lines, self.changed = [], threading.Condition()
        words = [options.ronde, "run", "--discover", f"cat {hosts_file}", "--backoff", "0.05", "--grace", "3"]
        words += ["--max-restarts", str(restarts), "--wait", str(PATIENCE), "--env", f"CHAOS={folder}"]
        words += ["--min-ranks", str(options.min_ranks)] if options.min_ranks else []
        words += ["--rsh", options.rsh] if options.rsh else []
        words += ["--"] + [word.replace("{folder}", str(folder)) for word in options.program]
        environment = {**os.environ, "RONDE_EXACT": "1", "RONDE_STALL_WARN_S": "1", "RONDE_STALL_ABORT_S": "3",
                       "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            words, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()

    def wait_for(self, pattern, start, meanwhile=lambda: None):
        """The first line from number `start` on that matches. `meanwhile` is called again and again."""
        deadline = time.monotonic() + PATIENCE
        with self.changed:
            while True:
                for line in self.lines[start:]:
                    if re.search(pattern, line):
                        return line
                if self.process.poll() is not None and not self.reader.is_alive():
                    raise Chaos(f"the job has ended with {self.process.returncode}, without /{pattern}/")
                if time.monotonic() >= deadline:
                    raise Chaos(f"nothing like /{pattern}/ within {PATIENCE} s")
                meanwhile()
                self.changed.wait(0.2)

    def end(self):
        """Its exit code."""
        code = self.process.wait(6 * PATIENCE)
        self.reader.join()
        return code

    def loss(self):
        losses = [found[1] for line in self.lines if (found := re.search(r"\] loss ([0-9.e+-]+)$", line))]
        return float(losses[-1]) if losses else None


def processes(folder):
    """Those of this test's ranks: pid -> rank."""
    found = {}
    for entry in os.scandir("/proc"):
        try:
            environment = pathlib.Path(entry.path, "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue  # it has ended, or is another's
        variables = dict(pair.partition(b"=")[::2] for pair in environment.split(b"\0"))
        if variables.get(b"CHAOS") == str(folder).encode() and b"RANK" in variables:
            found[int(entry.name)] = int(variables[b"RANK"])
    return found


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


class Driver:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.random = random.Random(options.seed)
        self.hosts = options.hosts.replace(",", "\n") + "\n"
        self.hosts_file = folder.with_name("hosts")
        self.hosts_file.write_text(self.hosts)
        self.job = Job(options, folder, self.hosts_file, 100000)
        self.times = collections.defaultdict(list)
        self.is_small = False

    def progress(self):
        return newest(self.folder)[1]

    def wait_for_progress(self, step):
        deadline = time.monotonic() + PATIENCE
        while self.progress() < step:
            if self.job.process.poll() is not None:
                raise Chaos(f"the job has ended with {self.job.end()} at step {self.progress()}")
            if time.monotonic() >= deadline:
                raise Chaos(f"no checkpoint of step {step} within {PATIENCE} s")
            time.sleep(0.005)

    def any_rank(self):
        """A rank whose group stands."""
        while True:
            ranks = processes(self.folder)
            if len(set(ranks.values())) == len(ranks) >= 2:
                return self.random.choice(sorted(ranks.items(), key=lambda row: row[1]))
            time.sleep(0.01)

    def run(self):
        for number in range(self.options.faults):
            kinds = [kind for kind in self.options.kinds if kind != ("shrink" if self.is_small else "grow")]
            kind = kinds[number % len(kinds)] if number < len(kinds) else self.random.choice(kinds)
            self.wait_for_progress(self.progress() + self.random.randrange(1, self.options.apart))
            time.sleep(self.random.uniform(0, 0.05))  # a fault comes at any moment
            before, said, begun = self.progress(), len(self.job.lines), time.monotonic()
            told = self.strike(kind, said)
            if told is not None:
                told -= begun
            self.wait_for_progress(before + 1)
            restarts = [line for line in self.job.lines[said:] if "; restart " in line]
            if kind in PASSES and restarts:
                raise Chaos(f"{kind} has ended the job: {restarts[0]}")
            self.times[kind].append((told, time.monotonic() - begun))
        if self.job.end() != 0:
            raise Chaos(f"the job has ended with {self.job.process.returncode}")
        restarts = [line for line in self.job.lines if "; restart " in line]
        wanted = sum(len(self.times.get(kind, [])) for kind in ENDS)
        if len(restarts) != wanted:
            raise Chaos(f"{wanted} faults, but these restarts:\n" + "\n".join(restarts))

    def strike(self, kind, said):
        """The moment at which the launcher told of it, where it does."""
        if kind in ENDS:
            return self.end_ranks(kind, said)
        if kind == "leave":
            return self.leave()
        pause = self.random.uniform(0.1, 0.5)
        if kind == "slow":
            pid, _ = self.any_rank()
            os.kill(pid, signal.SIGSTOP)
            time.sleep(pause)
            os.kill(pid, signal.SIGCONT)
        elif kind == "disk":
            self.fill_disk(said)
        else:
            space, link = self.random.choice(self.options.spaces), self.options.link
            drop = "add rule inet chaos in numgen random mod 10 < 3 drop"
            commands = {
                "drop": (["nft", "add table inet chaos; add chain inet chaos in { type filter hook input "
                          f"priority 0; }}; {drop}"], ["nft", "delete table inet chaos"]),
                "slow-link": (["tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", "1mbit", "burst", "16k",
                               "latency", "100ms"], ["tc", "qdisc", "del", "dev", link, "root"])}[kind]
            self.within(space, commands[0])
            time.sleep(pause)
            self.within(space, commands[1])
        return None

    @staticmethod
    def within(space, words):
        subprocess.run(["ip", "netns", "exec", space, *words], check=True)

    def end_ranks(self, kind, said):
        pid, rank = self.any_rank()
        wanted = f"rank {rank} on [^ ]+: signal 9"
        if kind in ("shrink", "grow"):
            self.is_small = kind == "shrink"
            self.hosts_file.write_text(self.options.small_hosts if self.is_small else self.hosts)
        if kind == "agent":
            os.kill(parent(pid), signal.SIGKILL)
            wanted = "the connection to its agent has ended"
        elif kind == "stop":
            os.kill(pid, signal.SIGSTOP)
            wanted = f"rank {rank} on "
        elif kind == "cut":
            self.within(self.options.spaces[-1], ["ip", "link", "set", self.options.link, "down"])
            wanted = "rank "
        else:
            os.kill(pid, signal.SIGKILL)
        line = self.job.wait_for(r"; restart \d+ of ", said)
        told = time.monotonic()
        if kind == "cut":
            self.within(self.options.spaces[-1], ["ip", "link", "set", self.options.link, "up"])
        if not re.search(wanted, line):
            raise Chaos(f"{kind} of rank {rank} was told as: {line}")
        return told

    def leave(self):
        self.job.process.send_signal(signal.SIGTERM)
        code = self.job.end()
        told = time.monotonic()
        if code != 128 + signal.SIGTERM or processes(self.folder):
            raise Chaos(f"a job that was told to leave has ended with {code}")
        lines = self.job.lines
        self.job = Job(self.options, self.folder, self.hosts_file, 100000)
        self.job.lines = lines
        return told

    def fill_disk(self, said):
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file:
            def fill():
                try:
                    while file.write(bytes(1 << 12)):
                        pass
                except OSError:
                    pass  # it is full
            # A save that had all its bytes when the disk became full removes an older checkpoint, whose room
            # the next save would have.
            self.job.wait_for("was not saved: .*No space left on device", said, meanwhile=fill)
        filler.unlink()


def undisturbed(options, folder):
    hosts_file = folder.with_name("hosts")
    hosts_file.write_text(options.hosts.replace(",", "\n") + "\n")
    job = Job(options, folder, hosts_file, 0)
    if job.end() != 0:
        raise Chaos("the undisturbed run has failed:\n" + "\n".join(job.lines))
    return checksums(folder), job.loss()


def check_nothing_is_left(folder):
    if processes(folder):
        raise Chaos(f"ranks are left: {processes(folder)}")
    others = [entry.name for entry in folder.iterdir() if not re.match(r"\d+-step-", entry.name)]
    if others or len(list(folder.iterdir())) > 2:
        raise Chaos(f"the folder of checkpoints has {sorted(os.listdir(folder))}")


def compare(options, wanted, driver):
    entries, loss = wanted
    if options.small_hosts:
        if not abs(driver.job.loss() - loss) <= 0.1 * loss + 1e-3:
            raise Chaos(f"the loss is {driver.job.loss()}, undisturbed {loss}")
        print(f"the loss is {driver.job.loss()}, undisturbed {loss}")
        return
    got = checksums(driver.folder)
    different = sorted(name for name in entries | got if entries.get(name) != got.get(name))
    if different:
        raise Chaos(f"other bits than those of the undisturbed run: {different}")
    print(f"{len(got)} tensors have the bits of the undisturbed run")


def print_table(times):
    print(f"{'fault':10} {'number':>6} {'told s':>8} {'most':>6} {'goes on s':>10} {'most':>6}")
    for kind, rows in sorted(times.items()):
        columns = []
        for values in ([told for told, _ in rows if told is not None], [back for _, back in rows]):
            columns += [f"{statistics.median(values):.2f}", f"{max(values):.2f}"] if values else ["", ""]
        print(f"{kind:10} {len(rows):6} {columns[0]:>8} {columns[1]:>6} {columns[2]:>10} {columns[3]:>6}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ronde", required=True)
    parser.add_argument("--hosts", default="localhost:3", help="as ronde run takes them")
    parser.add_argument("--rsh", help="as ronde run takes it")
    parser.add_argument("--spaces", type=lambda text: text.split(","), help="the hosts' network namespaces")
    parser.add_argument("--link", help="the network device in each of them")
    parser.add_argument("--resize", metavar="HOSTS", help="what is left of the hosts for a while")
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--apart", type=int, default=200, help="faults are at most so many steps apart")
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="of faults; default: all that are possible")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    options.small_hosts = options.resize.replace(",", "\n") + "\n" if options.resize else None
    options.min_ranks = options.resize and sum(int(host.rpartition(":")[2]) for host in options.resize.split(","))
    kinds = ["kill", "slow", "stop", "agent", "leave", "disk"]
    kinds += ["cut", "drop", "slow-link"] if options.spaces else []
    kinds += ["shrink", "grow"] if options.resize else []
    options.kinds = options.kinds or kinds
    return options


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as root:
        calm, disk = pathlib.Path(root, "calm"), pathlib.Path(root, "disk")
        calm.mkdir()
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "chaos", disk]).returncode != 0:
            print("skipped: mount namespaces cannot be made here")
            return 77
        folder = disk / "checkpoints"
        folder.mkdir()
        driver = None
        try:
            begun = time.monotonic()
            wanted = undisturbed(options, calm)
            print(f"seed {options.seed}; undisturbed: {time.monotonic() - begun:.1f} s", flush=True)
            driver = Driver(options, folder)
            driver.run()
            check_nothing_is_left(folder)
            compare(options, wanted, driver)
        except Chaos as problem:
            print("\n".join(driver.job.lines if driver else []))
            print(f"chaos.py: {problem}. Again: --seed {options.seed} --faults {options.faults}")
            return 1
        finally:
            if driver:
                driver.job.process.kill()
                for pid in processes(folder):
                    os.kill(pid, signal.SIGKILL)
                driver.job.reader.join()
                print_table(driver.times)
            subprocess.run(["umount", "-l", disk], check=True)
    return 0


sys.exit(main())
