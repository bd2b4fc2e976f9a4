#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""file_length.py LIMIT FOLDER...: names every C or C++ file longer than LIMIT lines."""
import pathlib
import sys


def main():
    limit, folders = int(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]]
    files = sorted(p for f in folders for p in f.rglob('*') if p.suffix in ('.h', '.cc', '.c'))
    if not files:
        sys.exit(f'no source in {folders}')
    lengths = [(p, p.read_text(encoding='utf-8').count('\n')) for p in files]
    long = [(p, length) for p, length in lengths if length > limit]
    for path, length in long:
        print(f'{path}: {length} lines, the limit is {limit}')
    print(f'{len(files)} files, {len(long)} longer than {limit} lines')
    sys.exit(1 if long else 0)


if __name__ == '__main__':
    main()
