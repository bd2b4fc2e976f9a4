#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pynvml_header.py FOLDER LIBTORCH_HEADER: writes as a C++ header what NVIDIA's pynvml.py in FOLDER declares of NVML.

No package has nvml.h itself. The names of functions are those that pynvml and LibTorch look up.
"""
import ctypes
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import pynvml

print("#include <cstddef>\n#include <set>\n#include <string>\n\nnamespace pynvml {")
for name, value in vars(pynvml).items():
    if re.match(r"NVML_(SUCCESS|ERROR_|VALUE_TYPE_|FI_DEV_NVLINK_)", name):
        print(f"constexpr int {name} = {value};")
for name in "nvmlFieldValue_t", "nvmlMemory_t", "nvmlUtilization_t":
    structure = getattr(pynvml, f"c_{name}")
    offsets = "".join(f", {field[0]} = {getattr(structure, field[0]).offset}" for field in structure._fields_)
    print(f"struct {name} {{ static constexpr std::size_t size = {ctypes.sizeof(structure)}{offsets}; }};")
sources = pathlib.Path(pynvml.__file__).read_text() + pathlib.Path(sys.argv[2]).read_text()
functions = sorted(set(re.findall(r'(?:_nvmlGetFunctionPointer\("|\b_\()(nvml\w+)', sources)))
print("const std::set<std::string> kFunctions = {%s};\n}" % ", ".join(f'"{name}"' for name in functions))
