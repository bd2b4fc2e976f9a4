# SPDX-License-Identifier: Apache-2.0
# cmake -DCOMPILER=<aarch64-linux-gnu-g++> -DCORE=<folder> -DWORK=<folder> -P ...
# The kernels' path for AArch64 compiles without a warning.
if(NOT COMPILER)
  message(STATUS "skipped: no aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu)")
  return()
endif()
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
file(MAKE_DIRECTORY "${WORK}")
foreach(file neon dispatch)
  run_step("compile ${file}.cc" "${COMPILER}" -std=c++20 -O1 -ffp-contract=off -Wall -Wextra
    -Wpedantic -Wshadow -Wconversion -Werror "-I${CORE}/.." "-I${CORE}/include"
    -c "${CORE}/src/kernels/${file}.cc"
    -o "${WORK}/${file}.o")
endforeach()
