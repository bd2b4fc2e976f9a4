#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""export_test.py RONDE JOB FIND_SLOW LAUNCHER...: checks what `ronde prof export` makes of a run and of a timeline
written here against the timelines' own JSON, read as Pipit and Hatchet read it (with pandas where it is installed)."""
import collections
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import pandas
except ImportError:
    pandas = None

ronde, job, find_slow, *launcher = sys.argv[1:]
COLUMNS = ['Timestamp (ns)', 'Event Type', 'Name', 'Process', 'Thread', 'File', 'Offset', 'Bytes']


def run(*words, code=0, **environment):
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60,
                            env={**os.environ, **environment})
    assert result.returncode == code, (words, result.returncode, result.stdout, result.stderr)
    return result


def read_rows(path):
    """The rows as Pipit's Trace.from_csv() has them: sorted by time alone."""
    with open(path, newline='', encoding='utf-8') as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS, list(rows[0])
    if pandas is not None:
        frame = pandas.read_csv(path, skipinitialspace=True).astype({'Process': 'int32'})
        assert list(frame.columns) == COLUMNS and len(frame) == len(rows)
        assert frame['Bytes'].sum() == sum(int(row['Bytes'] or 0) for row in rows)
    return sorted(rows, key=lambda row: int(row['Timestamp (ns)']))


def sums_of(rows):
    """Durations in ns by process and name; each region has to lie within the one around it."""
    sums, stacks = collections.Counter(), collections.defaultdict(list)
    for row in rows:
        stack = stacks[row['Process'], row['Thread']]
        if row['Event Type'] == 'Enter':
            stack.append(row)
        elif row['Event Type'] == 'Leave':
            enter = stack.pop()
            assert enter['Name'] == row['Name'], (enter, row)
            sums[int(row['Process']), row['Name']] += int(row['Timestamp (ns)']) - int(enter['Timestamp (ns)'])
    assert not any(stacks.values())
    return sums


def sums_of_timeline(folder):
    """The same of the timeline's slices."""
    sums, counts = collections.Counter(), collections.Counter()
    for path in folder.glob('rank*.json'):
        for event in json.loads(path.read_text())['traceEvents']:
            if event['ph'] != 'X':
                continue
            name = 'step' if event['cat'] == 'step' else event.get('args', {}).get('kind', event['name'])
            sums[event['pid'], name] += event['dur'] * 1000
            counts[event['pid'], name] += 1
    return sums, counts


def check_literal(nodes, rank=None, sums=None):
    """Checks inclusive = exclusive + children, and returns the inclusive ns by rank and name."""
    sums = collections.Counter() if sums is None else sums
    for node in nodes:
        metrics, name = node['metrics'], node['frame']['name']
        within = sum(child['metrics']['time (inc)'] for child in node['children'])
        assert metrics['time'] >= 0 and abs(metrics['time (inc)'] - metrics['time'] - within) < 1e-9, node
        if rank is not None and metrics['count'] > 0:
            sums[rank, name] += metrics['time (inc)'] * 1e9
        check_literal(node['children'], int(name.split()[1]) if rank is None else rank, sums)
    return sums


def check_export(timeline):
    run(ronde, 'prof', 'export', timeline)
    rows = read_rows(timeline / 'export/events.csv')
    sums, regions = sums_of(rows), check_literal(json.loads((timeline / 'export/hatchet.json').read_text()))
    expected, counts = sums_of_timeline(timeline)
    assert set(sums) == set(expected) == set(regions), set(sums) ^ set(expected) | set(sums) ^ set(regions)
    for key, ns in expected.items():  # rounded to a nanosecond at each end, and moved apart by some
        assert abs(sums[key] - ns) <= 10 * counts[key] and abs(regions[key] - ns) <= 10 * counts[key], key
    return rows


def check_run(folder):
    """Rank 1 computes long, rank 0 reads slowly; each reads 4096 bytes a step."""
    steps, data = 15, folder / 'data.bin'
    data.write_bytes(bytes(steps * 4096 - 96))
    run(*launcher, job, str(steps), 'slow-reader', data, RONDE_TIMELINE=str(folder / 'run'))
    rows = check_export(folder / 'run')
    for rank in '0', '1':
        reads = [row for row in rows if row['File'] and row['Process'] == rank]
        assert [int(row['Offset']) for row in reads] == [4096 * step for step in range(steps)]
        assert sum(int(row['Bytes']) for row in reads) == data.stat().st_size
        assert all(str(data).endswith(row['File'].removeprefix('...')) for row in reads)
    found = run(sys.executable, find_slow, folder / 'run/export/events.csv').stdout
    assert 'straggler: rank 1 ' in found and 'slow reader: rank 0 ' in found, found


def check_even_run(folder):
    """Of two ranks that take as long for steps and reads none is named."""
    folder.mkdir()
    for rank in range(2):
        events = [{'ph': 'X', 'pid': rank, 'tid': tid, 'ts': ts, 'dur': 90, 'cat': cat, 'name': cat, 'args': args}
                  for ts in (1000, 1100) for tid, cat, args in
                  ((1, 'step', {}), (10, 'span', {'bytes': 10, 'file': 'x', 'offset': 0}))]
        (folder / f'rank{rank}.json').write_text(json.dumps({'traceEvents': events}))
    run(ronde, 'prof', 'export', folder, '-o', folder / 'other')
    found = run(sys.executable, find_slow, folder / 'other/events.csv').stdout
    assert found == 'no straggler\nno slow reader\n', found


def check_crossing_slices(folder):
    """Spans of a thread that cross, begin together or have no length, and names that CSV has to quote."""
    def slice_of(name, begin, length, **args):
        return {'ph': 'X', 'pid': 0, 'tid': 10, 'ts': begin, 'dur': length, 'cat': 'span', 'name': name, 'args': args}
    slices = [slice_of('a, "b"\nc', 1000, 100), slice_of('crosses', 1050, 100, bytes=7, file='x,y', offset=3),
              slice_of('within', 1050, 10), slice_of('empty', 1100, 0), slice_of('next', 1100, 20),
              slice_of('same begin', 1100, 5)]
    folder.mkdir()
    (folder / 'rank0.json').write_text(json.dumps({'traceEvents': slices}))
    rows = check_export(folder)
    assert len({(row['Thread'], row['Timestamp (ns)']) for row in rows}) == len(rows) == 12
    assert [(row['File'], row['Offset'], row['Bytes']) for row in rows if row['File']] == [('x,y', '3', '7')]
    (folder / 'rank0.json').write_text(json.dumps({'traceEvents': [{**slices[0], 'ts': 'soon'}]}))
    assert 'rank0.json' in run(ronde, 'prof', 'export', folder, code=2).stderr
    assert 'No such file' in run(ronde, 'prof', 'export', folder / 'no', code=2).stderr


with tempfile.TemporaryDirectory() as holder:
    check_crossing_slices(pathlib.Path(holder) / 'crossing')
    check_even_run(pathlib.Path(holder) / 'even')
    check_run(pathlib.Path(holder))
print('with pandas' if pandas else 'without pandas')
