#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sets the scaling curve of the EDSR study beside what `ronde sim` predicts: three numbers of each of its set-ups are
fitted to its images a second on 2 to 32 GPUs, and the steps on 64 to 512 follow from them.

The study: V100 GPUs, four on a host, InfiniBand EDR, EDSR of 43 million parameters. Free are the computing of a step,
with what communication takes away from it, and the time that a byte takes within a host and on its link; with
--free-overhead also what a message between hosts takes of a processor, which is 2 us otherwise. Assumed are 4 images a
GPU and step, a latency of 1.5 us, and the defaults of all other costs. Writes rows that tools/plot.py draws to FOLDER,
two files for each set-up.

    tests/perf/study_curve.py BUILD FOLDER [--free-overhead] [SET-UP...]
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys

GPUS = [2, 4, 8, 16, 32, 64, 128, 256, 512]
FITTED = 5  # of these
PUBLISHED = {  # images a second
    'NCCL': [20, 40, 76, 142, 269, 511, 989, 1807, 3608],
    'MPI': [21, 41, 75, 126, 242, 490, 933, 1675, 3258],
    'MPI-Opt': [22, 44, 83, 156, 296, 588, 1152, 2185, 4116]}
IMAGES, IMAGES_PER_S = 4, 11.34  # of a GPU in a step, and of one alone
COMPUTE = 'compute_s'
# In seconds, where the search begins.
FREE = {COMPUTE: IMAGES / IMAGES_PER_S, 'host.bytes_shared': 3e-11, 'network.gap_per_byte': 2e-10}
OVERHEAD = {'network.overhead': 2e-6}
FIXED = {'network.latency': 1.5e-6}


class Curve:
    """The images a second that are predicted for one set-up."""

    def __init__(self, options):
        self.ronde, self.steps = options.build / 'bin/ronde', options.steps
        self.costs, self.rows = options.folder / 'costs.json', options.folder / 'rows.json'
        self.free = {**FREE, **OVERHEAD} if options.free_overhead else FREE

    def predicted(self, costs, gpus):
        fitted = {**FIXED, **OVERHEAD, **costs}
        compute_s = fitted.pop(COMPUTE)
        self.costs.write_text(json.dumps([{'costs': {'fitted': fitted}}]), encoding='utf-8')
        command = [self.ronde, 'sim', '--model', 'edsr-full', '--compute-ms', f'{1e3 * compute_s}',
                   '--ranks', ','.join(map(str, gpus)), '--ranks-per-host', '4', '--steps', str(self.steps),
                   '--costs', self.costs, '--json', self.rows]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(result.stderr)
        return [1e3 * IMAGES * row['ranks'] / row['step_ms'] for row in json.loads(self.rows.read_text())]

    def error(self, costs, published):
        """The root mean square of the relative errors on the GPUs that are fitted."""
        pairs = zip(self.predicted(costs, GPUS[:FITTED]), published)
        return math.sqrt(sum((got / want - 1) ** 2 for got, want in pairs) / FITTED)

    def fit(self, published):
        """A search along each number in turn, in smaller and smaller steps: few evaluations, and no derivatives."""
        costs, step = dict(self.free), 3.0
        least = self.error(costs, published)
        while step > 1.1:
            is_better = False
            for name in costs:
                exponent = 0.1 if name == COMPUTE else 1  # it is known better
                for factor in (step ** exponent, step ** -exponent):
                    tried = {**costs, name: costs[name] * factor}
                    error = self.error(tried, published)
                    if error < least:
                        costs, least, is_better = tried, error, True
                        break
            step = step if is_better else math.sqrt(step)
        return costs, least


def rows_of(images_per_s):
    """Rows as those of `ronde sim`."""
    compute_ms = 1e3 * IMAGES / IMAGES_PER_S
    steps_ms = [1e3 * IMAGES * gpus / images for gpus, images in zip(GPUS, images_per_s)]
    return [{'benchmark': 'sim', 'ranks': gpus, 'step_ms': step_ms, 'compute_ms': compute_ms,
             'exposed_ms': max(0, step_ms - compute_ms), 'efficiency_percent': 100 * compute_ms / step_ms}
            for gpus, step_ms in zip(GPUS, steps_ms)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build', type=pathlib.Path)
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('setups', nargs='*', metavar='SET-UP', default=PUBLISHED, help=', '.join(PUBLISHED))
    parser.add_argument('--free-overhead', action='store_true')
    parser.add_argument('--steps', default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    curve = Curve(options)
    for name in options.setups:
        published = PUBLISHED[name]
        costs, error = curve.fit(published)
        print(f'{name}: {100 * error:.1f} % on 2 to {GPUS[FITTED - 1]} GPUs with',
              ', '.join(f'{cost} {seconds:.3g}' for cost, seconds in costs.items()), flush=True)
        predicted = curve.predicted(costs, GPUS)
        for gpus, got, want in zip(GPUS, predicted, published):
            print(f'{gpus:5} GPUs: published {want:5} images/s, predicted {got:7.1f}, {100 * (got / want - 1):+5.1f} %',
                  flush=True)
        for kind, images in (('published', published), ('predicted', predicted)):
            path = options.folder / f'{name}, {kind}.json'
            path.write_text(json.dumps(rows_of(images), indent=1), encoding='utf-8')


if __name__ == '__main__':
    main()
