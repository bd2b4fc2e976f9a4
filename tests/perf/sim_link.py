#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the steps that `ronde sim` predicts with measured ones.

Two ranks of one host, and one and two ranks on each of two hosts, which are network namespaces, over links of 100
Mbit/s, 1 Gbit/s, and 1 Gbit/s with a delay of 1 ms. The costs come from `ronde bench allreduce --model` alone, the
program from the timeline of two ranks of one host: no step that is predicted was fitted. Prints a row for each
setting, the median error, and for each link and number of ranks Spearman's rank correlation of the settings.
Needs root and MPICH.

    tests/perf/sim_link.py BUILD [--tensors 48] [--kib 96] [--compute-ms 60] [--steps 20]
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

LINKS = {'100 Mbit/s': {'RONDE_LINK_RATE': '100mbit'},
         '1 Gbit/s': {'RONDE_LINK_RATE': '1gbit'},
         '1 Gbit/s, 1 ms': {'RONDE_LINK_RATE': '1gbit', 'RONDE_LINK_DELAY_MS': '1'}}
SETTINGS = ['RONDE_FUSION_BYTES=64MiB', 'RONDE_FUSION_BYTES=1MiB', 'RONDE_FUSION_BYTES=128KiB',
            'RONDE_CYCLE_TIME_MS=0', 'RONDE_CYCLE_TIME_MS=25', 'RONDE_ALLREDUCE=ring',
            'RONDE_ALLREDUCE=recursive_doubling']
ROOT = pathlib.Path(__file__).resolve().parents[2]


def output(command, variables=None):
    """Runs a command with variables added, and returns what it prints."""
    environment = {**os.environ, 'RONDE_LOG_LEVEL': 'error', **(variables or {})}
    words = [str(part) for part in command]
    result = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


class Comparison:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.ronde = options.build / 'bin/ronde'
        self.rows = []
        allreduce = [self.ronde, 'bench', 'allreduce', '--model', '--min', '4', '--max', '4MiB', '--iters', '15']
        self.host_costs = folder / 'host.json'
        output(['mpiexec', '-n', 2, *allreduce, '--json', self.host_costs])
        output(['mpiexec', '-n', 2, *self.program()], {'RONDE_TIMELINE': str(folder / 'trace')})
        self.link_costs = {}
        for link, variables in LINKS.items():
            self.link_costs[link] = folder / f'link{len(self.link_costs)}.json'
            output([ROOT / 'scripts/two_hosts.sh', 1, *allreduce, '--raw', '--backend', 'fabric', '--json',
                    self.link_costs[link]], variables)

    def program(self):
        options = self.options
        return [options.build / 'bin/tuned_steps', options.steps, options.tensors, options.kib,
                round(1000 * options.compute_ms)]

    def predicted(self, link, ranks, of_host, setting):
        table = self.folder / 'row.json'
        costs = ['--costs', self.host_costs] + (['--costs', self.link_costs[link]] if link in LINKS else [])
        output([self.ronde, 'sim', '--timeline', self.folder / 'trace', '--ranks', ranks, '--ranks-per-host', of_host,
                *costs, '--set', setting, '--json', table])
        return json.loads(table.read_text(encoding='utf-8'))[0]['step_ms']

    def compare(self, link, ranks, of_host):
        for setting in SETTINGS:
            name, value = setting.split('=')
            launcher = [ROOT / 'scripts/two_hosts.sh', of_host] if link in LINKS else ['mpiexec', '-n', ranks]
            said = output([*launcher, *self.program()], {**LINKS.get(link, {}), name: value})
            measured = float(re.search(r'steps: ([0-9.]+) ms', said).group(1))
            row = (link, ranks, setting, self.predicted(link, ranks, of_host, setting), measured)
            print('%-16s %5d  %-36s %9.2f %9.2f %6.1f %%' % (*row, 100 * error_of(row)), flush=True)
            self.rows.append(row)

    def order(self, link, ranks):
        rows = [row for row in self.rows if row[:2] == (link, ranks)]
        predicted, measured = (places([row[column] for row in rows]) for column in (3, 4))
        return statistics.correlation(predicted, measured)


def error_of(row):
    return row[3] / row[4] - 1


def places(values):
    """Returns the place of each; equal ones share the mean of theirs."""
    return [sum((other < value) + (other == value) / 2 for other in values) for value in values]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build', type=pathlib.Path)
    parser.add_argument('--tensors', type=int, default=48)
    parser.add_argument('--kib', type=int, default=96, help='of each tensor')
    parser.add_argument('--compute-ms', type=float, default=60, help='of a step, in which no core is used')
    parser.add_argument('--steps', type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, pathlib.Path(folder))
        print('%-16s %5s  %-36s %9s %9s %8s' % ('link', 'ranks', 'setting', 'predicted', 'measured', 'error'))
        places_of_ranks = [('one host', 2, 2)] + [(link, 2 * hosted, hosted) for link in LINKS for hosted in (1, 2)]
        for place in places_of_ranks:
            comparison.compare(*place)
        errors = [abs(error_of(row)) for row in comparison.rows]
        print('median error of %d rows: %.1f %%' % (len(errors), 100 * statistics.median(errors)))
        for link, ranks, _ in places_of_ranks:
            print('rank correlation, %s, %d ranks: %.2f' % (link, ranks, comparison.order(link, ranks)))


if __name__ == '__main__':
    main()
