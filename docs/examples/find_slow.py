#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""find_slow.py EVENTS.CSV: names the rank that the others wait for, and the rank that reads slowly.

EVENTS.CSV is what `ronde prof export` writes. A rank's own time is that of its steps without its waits.
"""
import collections
import csv
import statistics
import sys

FACTOR = 1.5  # from the median of the other ranks


def spans(path):
    """Yields process, name, begin and duration in nanoseconds, file and bytes of each region."""
    open_regions = collections.defaultdict(list)
    with open(path, newline='', encoding='utf-8') as file:
        for row in csv.DictReader(file):
            stack = open_regions[row['Process'], row['Thread']]
            if row['Event Type'] == 'Enter':
                stack.append(row)
            elif row['Event Type'] == 'Leave':
                enter = stack.pop()
                begin = int(enter['Timestamp (ns)'])
                yield (int(row['Process']), row['Name'], begin, int(row['Timestamp (ns)']) - begin,
                       enter['File'], int(enter['Bytes'] or 0))


def outlier(of_rank):
    """Returns the rank that is most above the median of the others, and by which factor."""
    found = (-1, 0.0)
    for rank, value in of_rank.items():
        others = statistics.median([other for each, other in of_rank.items() if each != rank] or [value])
        if others > 0 and value / others > found[1]:
            found = (rank, value / others)
    return found


def main():
    own = collections.Counter()
    reads = collections.defaultdict(lambda: [0, 0])
    regions = list(spans(sys.argv[1]))
    first_step = {}
    for rank, name, begin, _, _, _ in regions:
        if name == 'step':
            first_step[rank] = min(begin, first_step.get(rank, begin))
    for rank, name, begin, ns, file, size in regions:
        if name == 'step':
            own[rank] += ns
        elif name.split(' ')[0] == 'wait' and begin >= first_step.get(rank, begin + 1):
            own[rank] -= ns
        elif file and not name.startswith('write'):
            reads[rank][0] += ns
            reads[rank][1] += size
    rank, factor = outlier(own)
    print(f'straggler: rank {rank} computes {factor:.1f} times as long as the others' if factor > FACTOR
          else 'no straggler')
    rank, factor = outlier({rank: ns / size for rank, (ns, size) in reads.items() if size})
    print(f'slow reader: rank {rank} takes {factor:.1f} times as long for a byte as the others' if factor > FACTOR
          else 'no slow reader')


if __name__ == '__main__':
    main()
