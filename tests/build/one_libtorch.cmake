# SPDX-License-Identifier: Apache-2.0
# cmake -DPROGRAM=<binary> -DLIBRARY_DIR=<LibTorch's lib> -P ...
# A program must load exactly one libc10 and one libtorch_cpu, both from the LibTorch that was chosen.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
run_step("ldd ${PROGRAM}" ldd "${PROGRAM}")
foreach(name libc10 libtorch_cpu)
  string(REGEX MATCHALL "${name}\\.so[^ ]* => [^ \n]*" found "${run_step_output}")
  list(LENGTH found count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "${PROGRAM} loads ${count} of ${name}, not one: ${found}\n${run_step_output}")
  endif()
  string(REGEX REPLACE ".* => " "" path "${found}")
  file(REAL_PATH "${path}" path)
  file(REAL_PATH "${LIBRARY_DIR}" expected)
  cmake_path(IS_PREFIX expected "${path}" NORMALIZE inside)
  if(NOT inside)
    message(FATAL_ERROR "${PROGRAM} loads ${path}, not the ${name} of ${expected}")
  endif()
endforeach()
