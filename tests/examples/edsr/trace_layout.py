#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trace_layout.py TRACE...: compares timelines with the trace that LibTorch's own profiler writes.

Whatever LibTorch writes in each event of a phase (`ph`) must be in each of ours, with a type of JSON that
it has there, too. Phases that LibTorch does not use follow the Trace Event Format.
"""
import collections
import json
import os
import sys
import tempfile

import torch
import torch.distributed
from torch.profiler import ProfilerActivity, profile

# What LibTorch says of GPUs, of itself, and of the process groups of c10d.
OF_LIBTORCH_ALONE = {'deviceProperties', 'trace_id', 'traceName', 'profile_memory', 'ERROR', 'WARNING', 'pg_count',
                     'pg_config'}
# "Trace Event Format": async events and counters.
ASYNC = {'name': {'string'}, 'cat': {'string'}, 'id': {'number', 'string'}, 'pid': {'number'}, 'tid': {'number'},
         'ts': {'number'}}
COUNTER = {'name': {'string'}, 'pid': {'number'}, 'ts': {'number'}, 'args': {'object'}}
OTHER_PHASES = {'b': ASYNC, 'n': ASYNC, 'e': ASYNC, 'C': COUNTER}
OURS = set('MXCibnesf')


def type_of(value):
    names = {bool: 'boolean', int: 'number', float: 'number', str: 'string', dict: 'object', list: 'array'}
    return names[type(value)]


def write_torch_trace(path):
    """One rank of a group that trains a little."""
    torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(4, 4)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(torch.ones(2, 4)).sum().backward()
    profiler.export_chrome_trace(path)
    torch.distributed.destroy_process_group()


def read(path):
    with open(path, encoding='utf-8') as file:
        return json.load(file)


def layout_of(trace):
    """For each phase the fields that all its events have, with their types."""
    layout = {}
    for event in trace['traceEvents']:
        fields = layout.setdefault(event['ph'], {name: set() for name in event})
        for name in list(fields):
            if name in event:
                fields[name].add(type_of(event[name]))
            else:
                del fields[name]
    return layout


def differences_of_object(ours, theirs, what):
    for name, value in theirs.items():
        if name in OF_LIBTORCH_ALONE:
            continue
        if name not in ours:
            yield f'{what} has no {name}'
        elif type_of(ours[name]) != type_of(value):
            yield f'{name} of {what} is of type {type_of(ours[name])}, that of LibTorch {type_of(value)}'


def wrong_clock(trace, path):
    """The last event is no younger than the file, and hardly older: times are microseconds of the wall clock."""
    last_us = max(event['ts'] for event in trace['traceEvents'] if event['ph'] != 'M')
    age_s = os.stat(path).st_mtime - (trace['baseTimeNanoseconds'] / 1e3 + last_us) / 1e6
    if not -1 < age_s < 60:
        yield f'the last event is {age_s:.3f} s older than the file'


def differences(trace, torch_trace, path):
    yield from differences_of_object(trace, torch_trace, 'the trace')
    for name in ('schemaVersion', 'displayTimeUnit'):
        if trace.get(name) != torch_trace[name]:
            yield f'{name} is {trace.get(name)}, that of LibTorch {torch_trace[name]}'
    yield from differences_of_object(trace.get('distributedInfo', {}), torch_trace['distributedInfo'],
                                     'distributedInfo')
    if 'baseTimeNanoseconds' in trace:
        yield from wrong_clock(trace, path)
    phases = {**OTHER_PHASES, **layout_of(torch_trace)}
    for event in trace['traceEvents']:
        for name, types in phases.get(event['ph'], {'a phase that we know': set()}).items():
            if name not in event or type_of(event[name]) not in types:
                yield f'{name} of type {" or ".join(sorted(types))} is missing in {json.dumps(event)}'
        if event['ph'] == 'C' and any(type_of(value) != 'number' for value in event['args'].values()):
            yield f'a counter is no number in {json.dumps(event)}'


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'torch.json')
        write_torch_trace(path)
        torch_trace = read(path)
        found = list(wrong_clock(torch_trace, path))
    found += [f'LibTorch wrote no event "{phase}"' for phase in set('MXisf') - set(layout_of(torch_trace))]
    counts = collections.Counter()
    for path in sys.argv[1:]:
        trace = read(path)
        counts.update(event['ph'] for event in trace['traceEvents'])
        found += [f'{path}: {text}' for text in differences(trace, torch_trace, path)][:20]
    found += [f'there is no event "{phase}"' for phase in OURS - set(counts)]
    print('\n'.join(found) or f'{sum(counts.values())} events have the layout of LibTorch {torch.__version__}')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
