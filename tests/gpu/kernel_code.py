#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kernel_code.py CUOBJDUMP IMAGE ARCHITECTURE...: reads the compiled kernels, and names what no kernel may do.

IMAGE is a fat binary with machine code for each ARCHITECTURE (such as 90), and with PTX for the last one, from which
drivers compile for newer GPUs. The names of kernels, the threads of a block and the oldest GPU are those of the
sources from which the host's code looks kernels up and launches them.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

REGISTERS = 65536  # of a multiprocessor, which gives 8 at a time to each thread
SPILLED = 16  # bytes: the compiler may park two values that no loop needs
# Each pattern matches whole instructions. Kernels neither signal nor wait, as streams do that for them: one that
# did would have to do it at the scope of the system, for GPUs and processes beside its own.
WRONG = {
    "ptx": {
        "rounds once where the CPU rounds twice": r"(fma|mad)\.\S*f\d+\S*",
        "rounds otherwise than the CPU": r"(?!cvt)\w+\.(\w+\.)*(approx|ftz|full|rz|rm|rp)\.\S+",
        "may read old data of a peer": r"ld\.(\w+\.)*nc\b\S*|ldu\.\S+|tex\.\S+",
        "synchronises": r"(fence|membar|atom|red|bar|barrier)\.\S+|(ld|st)\.(volatile|relaxed|acquire|release)\S*",
        "keeps an array in local memory": r"(ld|st)\.local\S*",
    },
    "code": {
        "may read old data of a peer": r"LDG\S*\.CONSTANT\S*|(TEX|TLD)\S*",
        "synchronises": r"(MEMBAR|ATOM|ATOMG|RED|BAR|ERRBAR)(\.\S+)?|(LD|ST)G?\S*\.STRONG\S*",
    },
}
PTX_LINE = re.compile(r"(?:@!?%p\d+ )?([a-z]\w*\.[\w.:]+)")
CODE_LINE = re.compile(r"\s+/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z][\w.]*)")

faults = 0


def check(holds, text):
    global faults
    if not holds:
        faults += 1
        print(text)


def constant(file, name):
    source = pathlib.Path(__file__).resolve().parents[2] / "backends/gpu" / file
    return int(re.search(rf"\b{name} = (\d+);", source.read_text())[1])


def by_architecture(text, architectures):
    parts = re.split(r"^arch = sm_(\d+)$", text, flags=re.M)
    found = {name: part for name, part in zip(parts[1::2], parts[2::2]) if "Function" in part}
    check(list(found) == architectures, f"kernels are shown for {list(found)}")
    return found.items()


def check_instructions(kind, architecture, text, names):
    """Returns how often each kernel has each instruction."""
    header, line = (r"\.entry (\w+)", PTX_LINE) if kind == "ptx" else (r"Function : (\w+)", CODE_LINE)
    kernels = {}
    for name, body in zip(*[iter(re.split(header, text)[1:])] * 2):
        kernels[name] = collections.Counter(match[1] for match in map(line.match, body.splitlines()) if match)
    lacking, foreign = sorted(names - set(kernels)), sorted(set(kernels) - names)
    check(not lacking and not foreign, f"{kind} {architecture}: kernels lacking: {lacking}, unknown: {foreign}")
    for name, counts in sorted(kernels.items()):
        for fault, pattern in WRONG[kind].items():
            found = sorted(each for each in counts if re.fullmatch(pattern, each))
            check(not found, f"{kind} {architecture} {name} {fault}: {' '.join(found)}")
    return kernels


def check_divisions(architecture, name, counts):
    """An exact division is a reciprocal and a few fused steps of its own. Nothing else may be fused."""
    def count(pattern):
        return sum(times for each, times in counts.items() if re.fullmatch(pattern, each))
    single, double = count(r"MUFU\.(RCP|RSQ)"), count(r"MUFU\.RCP64H")
    fused = count(r"FFMA.*") > 5 * single + double or count(r"DFMA.*") > 8 * double
    check(not fused, f"code {architecture} {name} rounds once where the CPU rounds twice: FFMA or DFMA")


def check_resources(architecture, text, names):
    threads = constant("kernels/segments.h", "kThreads")
    rows = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+).*LOCAL:(\d+)", text)
    check(names <= {row[0] for row in rows}, f"code {architecture}: the resources of some kernels are not shown")
    for name, registers, stack, local in rows:
        needed = (int(registers) + 7) // 8 * 8 * threads
        check(needed <= REGISTERS, f"code {architecture} {name}: {registers} registers are too many for a block")
        check(int(stack) + int(local) <= SPILLED, f"code {architecture} {name} spills {stack} bytes")


def main():
    cuobjdump, image, *architectures = sys.argv[1:]
    # cuobjdump calls nvdisasm, which lies beside it.
    environment = dict(os.environ, PATH=f"{pathlib.Path(cuobjdump).parent}:{os.environ['PATH']}")

    def dump(what):
        return subprocess.run([cuobjdump, what, image], env=environment, check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    names = set(re.findall(r"macro\((ronde_\w+),", (pathlib.Path(__file__).resolve().parents[2] /
                                                    "backends/gpu/kernels/kernel_list.h").read_text()))
    found = [re.findall(r"\.sm_(\w+)\.(?:cubin|ptx)", dump(option)) for option in ("-lelf", "-lptx")]
    check(found == [architectures, architectures[-1:]], f"code for {found[0]}, PTX for {found[1]}")
    check(int(found[0][0]) == constant("gpu_backends.cc", "kLeastCapability"), "the oldest GPU is not Ronde's")
    ptx = dump("-ptx").partition("ptx code")[2]
    check("--fmad false" in ptx.partition(".version")[0], "the driver may fuse what it compiles from PTX")
    check_instructions("ptx", found[1][0], ptx, names)
    for architecture, text in by_architecture(dump("-sass"), found[0]):
        for name, counts in check_instructions("code", architecture, text, names).items():
            check_divisions(architecture, name, counts)
    for architecture, text in by_architecture(dump("-res-usage"), found[0]):
        check_resources(architecture, text, names)
    print(f"{len(names)} kernels, code for {' '.join(architectures)}: {faults} faults")
    sys.exit(faults > 0)


main()
