#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes PyPI's NCCL fit scripts/gpu_kit.sh: its libnccl.so.2 with the device code of one architecture.

    slim_nccl.py OUT

Device code of others and what only a linker reads become zeros, so that all offsets stay; of 200 MB, 14 are left
once compressed. Ranks may share a GPU by NCCL 2.30 and newer, and the LibTorch of GPU machines brings an older one.
"""
import mmap, os, pathlib, re, struct, subprocess, sys, tempfile, zipfile

PACKAGE, ARCHITECTURE = "nvidia-nccl-cu13==2.30.7", 90
FATBINARY, MACHINE_CODE = 0xBA55ED50, 2


def section(library, name):
    """Its (offset, size) in the file; None if there is none."""
    table = subprocess.run(["readelf", "-SW", library], check=True, capture_output=True, text=True).stdout
    found = re.search(rf" {re.escape(name)} +\w+ +\w+ (\w+) (\w+)", table)
    return found and (int(found[1], 16), int(found[2], 16))


def keep_only(data, offset, size, architecture):
    """Zeroes each entry of the section's fatbinaries that is not machine code of it. Returns the bytes kept."""
    kept, at = 0, offset
    while at + 16 <= offset + size:
        magic, _version, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic != FATBINARY:  # padding between two
            at += 8
            continue
        entry, at = at + header, at + header + length
        while entry < at:
            kind, _one, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            if kind == MACHINE_CODE and struct.unpack_from("<I", data, entry + 28) == (architecture,):
                kept += payload
            else:
                data[entry + entry_header:entry + entry_header + payload] = bytes(payload)
            entry += entry_header + payload
    return kept


def main():
    out = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                        "--only-binary=:all:", "--platform", "manylinux_2_18_x86_64", "-d", folder, PACKAGE], check=True)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        library = zipfile.ZipFile(wheel).extract("nvidia/nccl/lib/libnccl.so.2", folder)
        subprocess.run(["strip", "--strip-all", library], check=True)
        with open(library, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            if keep_only(data, *section(library, ".nv_fatbin"), ARCHITECTURE) == 0:
                sys.exit(f"{PACKAGE} has no machine code of sm_{ARCHITECTURE}")
            if linked := section(library, "__nv_relfatbin"):  # its headers stay
                keep_only(data, *linked, 0)
        os.replace(library, out)


if __name__ == "__main__":
    main()
