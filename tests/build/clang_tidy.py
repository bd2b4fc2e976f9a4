#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang_tidy.py BUILD_FOLDER [COMMIT]: what clang-tidy 19 finds in lines that changed since the commit.

By default since origin/main, and on that branch itself since the commit before. The sources of the product that
changed are read, and in them the lines of sources and headers that did. Exit status 77 (skipped) where
clang-tidy or an earlier commit is missing, or more sources changed than a test has time for; all are read if
COMMIT is given.
"""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

MOST_SOURCES = 60  # some five minutes on two cores


def git(*arguments):
    found = subprocess.run(('git', *arguments), capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else ''


def skip(text):
    print(f'skipped: {text}')
    sys.exit(77)


def changed_lines(base):
    """{file: [[first, last], ...]} of sources and headers of the product, from git's hunks."""
    lines, name = {}, None
    for line in git('diff', '-U0', '--no-color', '--diff-filter=d', base, '--', '*.h', '*.cc', ':!tests').splitlines():
        if line.startswith('+++ b/'):
            name = line[6:]
        elif hunk := re.match(r'@@ \S+ \+(\d+)(?:,(\d+))? @@', line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            if count:
                lines.setdefault(name, []).append([first, first + count - 1])
    return lines


def main():
    build = sys.argv[1]
    if not shutil.which('clang-tidy-19'):
        skip('no clang-tidy-19')
    base = sys.argv[2] if len(sys.argv) > 2 else git('merge-base', 'HEAD', 'origin/main')
    if not base or base == git('rev-parse', 'HEAD'):
        base = git('rev-parse', '-q', '--verify', 'HEAD~1') or skip('clang-tidy has no earlier commit to compare with')
    lines = changed_lines(base)
    sources = [name for name in lines if name.endswith('.cc')]
    if len(sources) > MOST_SOURCES and len(sys.argv) < 3:
        skip(f'clang-tidy has more than {MOST_SOURCES} sources to read')
    print(f'{len(sources)} sources that changed since {git("log", "-1", "--format=%h %s", base)}')
    line_filter = json.dumps([{'name': name, 'lines': places} for name, places in lines.items()])

    # The flags of a source that is compiled within another one come from a neighbour, which may lack folders.
    with open(os.path.join(build, 'compile_commands.json'), encoding='utf-8') as commands:
        folders = dict.fromkeys(re.findall(r'-(?:I|isystem) ?(/[^ "]+)', commands.read()))
    includes = [f'--extra-arg=-isystem{folder}' for folder in folders]

    def tidy(source):
        found = subprocess.run(
            ('clang-tidy-19', '-p', build, '--quiet', '--line-filter', line_filter, source,
             '--extra-arg=-Wno-unknown-warning-option', '--extra-arg=-Wno-ignored-gch', *includes),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if found.returncode:
            print(f'{source}:\n{found.stdout}', flush=True)
        return found.returncode

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        sys.exit(1 if any(list(pool.map(tidy, sources))) else 0)


if __name__ == '__main__':
    main()
