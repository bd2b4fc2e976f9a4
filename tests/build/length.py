#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""length.py LIMIT FOLDER...: names functions longer than LIMIT lines.

Braces are matched after comments and literals are blanked. A block is a function's if
the text before it has a parameter list and it stands in a namespace or a class.
"""
import pathlib
import re
import sys

LITERALS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'',
    re.S)
CONTAINER = re.compile(r'\b(namespace|class|struct|union|enum|extern)\b(?!.*\)\s*(const|noexcept)?\s*$)', re.S)


def blank(match):
    return re.sub(r'[^\n]', ' ', match.group())


def kind_of(header, parent):
    """What the block after this text is: 'container', 'function' or 'other'."""
    text = re.sub(r'^\s*#.*$', '', header, flags=re.M).strip()
    if parent != 'container':
        return 'other'
    if re.match(r'(inline\s+)?namespace\b|extern\b', text):
        return 'container'
    if '(' not in re.sub(r'alignas\([^)]*\)|\[\[.*?\]\]|__attribute__\(\(.*?\)\)', '', text):
        return 'container' if CONTAINER.search(text) else 'other'
    return 'other' if re.search(r'=\s*$', text) else 'function'


def long_functions(path, limit):
    text = LITERALS.sub(blank, path.read_text(encoding='utf-8'))
    stack, start, line = [], 0, 1
    for index, char in enumerate(text):
        if char == '\n':
            line += 1
        if char == '{':
            parent = stack[-1][0] if stack else 'container'
            header = text[start:index]
            first = line - header.lstrip().count('\n')
            stack.append((kind_of(header, parent), first, ' '.join(header.split())))
        elif char == '}' and stack:
            kind, first, header = stack.pop()
            if kind == 'function' and line - first + 1 > limit:
                yield f'{path}:{first}', line - first + 1, header[:90]
        if char in '{};':
            start = index + 1


def main():
    limit, folders = int(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]]
    files = sorted(p for f in folders for p in f.rglob('*') if p.suffix in ('.h', '.cc', '.c'))
    if not files:
        sys.exit(f'no source in {folders}')
    found = [entry for path in files for entry in long_functions(path, limit)]
    for place, length, header in found:
        print(f'{place}: {length} lines, the limit is {limit}: {header}')
    print(f'{len(files)} files, {len(found)} functions above {limit} lines')
    sys.exit(1 if found else 0)


if __name__ == '__main__':
    main()
