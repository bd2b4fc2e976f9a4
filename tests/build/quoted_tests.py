#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quoted_tests.py LISTING FILE_OR_FOLDER...: names every quoted test that does not exist.

LISTING has the name of a test on each line, such as mp.allreduce@n3 or mp.allreduce.allreduce of i8@n3.
In the Markdown files, `code` that begins like one of them, and what follows ctest's -R, is a regular
expression for ctest: it must match the beginning of a name.
"""
import pathlib
import re
import sys

QUOTED = re.compile(r"`([^`]+)`|\s-R\s+'([^']+)'")
FENCE = re.compile(r'^ *```.*?^ *```', re.S | re.M)
# Files, and modules of PyTorch, which share their first word with tests.
NO_TEST = re.compile(r'\S*\.(md|h|cc|c|py|sh|json|csv|gz|png)$|torch\.((cuda|nn|optim|utils)\.|distributed(\.|$))')


def without_quotes(match):
    """A block of code has no inline code, but lines to be counted and commands to be checked."""
    return match.group().replace('`', ' ')


def quoted_names(path, prefixes):
    text = FENCE.sub(without_quotes, path.read_text(encoding='utf-8'))
    for match in QUOTED.finditer(text):
        name = ' '.join((match.group(1) or match.group(2)).split()).removeprefix('^')
        if name.partition('.')[0] in prefixes and '.' in name.rstrip('.') and not NO_TEST.match(name):
            yield text.count('\n', 0, match.start()) + 1, name


def exists(name, tests):
    try:
        pattern = re.compile(name)
    except re.error:
        return False
    return any(pattern.match(test) for test in tests)


def main():
    tests = pathlib.Path(sys.argv[1]).read_text(encoding='utf-8').splitlines()
    prefixes = {test.partition('.')[0] for test in tests}
    files = [p for name in sys.argv[2:] for p in
             (sorted(pathlib.Path(name).rglob('*.md')) if pathlib.Path(name).is_dir() else [pathlib.Path(name)])]
    found = [(path, *quoted) for path in files for quoted in quoted_names(path, prefixes)]
    wrong = [(path, line, name) for path, line, name in found if not exists(name, tests)]
    for path, line, name in wrong:
        print(f'{path}:{line}: no test is called {name}')
    print(f'{len(found)} quoted tests in {len(files)} files, {len(wrong)} do not exist')
    sys.exit(1 if wrong or not found else 0)


if __name__ == '__main__':
    main()
