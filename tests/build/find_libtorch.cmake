# SPDX-License-Identifier: Apache-2.0
# cmake -DPROJECT=<find_libtorch/> -DRONDE_CMAKE_DIR=<cmake/> -DWORK=<scratch> -P ...
# The find module on made-up roots: which one it takes, and how it words its refusals.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
file(REMOVE_RECURSE "${WORK}")

set(new_symbol "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE")
set(old_symbol "_ZN3c105ErrorC1ENS_14SourceLocationESs")

function(make_root root major minor symbol)
  file(WRITE "${root}/include/torch/csrc/api/include/torch/torch.h" "")
  file(WRITE "${root}/include/torch/version.h" "#define TORCH_VERSION_MAJOR ${major}\n\
#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH 1\n")
  file(WRITE "${root}/lib/libtorch_cpu.so" "")
  file(WRITE "${root}/lib/libc10.so" "${symbol}\n")
endfunction()

# Configures with nothing of the machine's own LibTorch in reach.
function(configure result)
  file(REMOVE_RECURSE "${WORK}/build")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env --unset=LibTorch_ROOT --unset=CMAKE_PREFIX_PATH
      "RONDE_VENV=${WORK}/venv" "${CMAKE_COMMAND}" -S "${PROJECT}" -B "${WORK}/build"
      "-DRONDE_CMAKE_DIR=${RONDE_CMAKE_DIR}" ${ARGN}
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  # CMake wraps its messages: compare on single spaces.
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  set(${result} "${output}" PARENT_SCOPE)
  set(status "${status}" PARENT_SCOPE)
endfunction()

function(expect_chosen root)
  configure(output ${ARGN})
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "configure failed:\n${output}")
  endif()
  expect_contains("${output}" "chosen: ${root} version 2.11.1 library ${root}/lib/libtorch_cpu.so")
endfunction()

function(expect_refused text)
  configure(output ${ARGN})
  if(status EQUAL 0)
    message(FATAL_ERROR "configure succeeded, but should have said\n  ${text}\n${output}")
  endif()
  expect_contains("${output}" "${text}")
endfunction()

# make_python(<name> <text> [<text under -E>]): an interpreter that says where its torch lies, or "|" and where none does.
function(make_python name text)
  set(text_under_E "${ARGV2}")
  if(NOT text_under_E)
    set(text_under_E "${text}")
  endif()
  file(WRITE "${WORK}/${name}" "#!/bin/sh\nif [ \"$1\" = -E ]; then echo '${text_under_E}'; else echo '${text}'; fi\n")
  file(CHMOD "${WORK}/${name}" PERMISSIONS OWNER_READ OWNER_EXECUTE)
endfunction()

set(good "${WORK}/good")
set(venv_root "${WORK}/venv/lib/python3.11/site-packages/torch")
make_root("${good}" 2 11 "${new_symbol}")
make_root("${venv_root}" 2 11 "${new_symbol}")
expect_chosen("${good}" "-DTorch_DIR=${good}/share/cmake/Torch")
expect_chosen("${good}" "-DCMAKE_PREFIX_PATH=${good}")
make_python(python "${good}")
expect_chosen("${good}" "-DPython3_EXECUTABLE=${WORK}/python")
make_python(python_of_pip "|/overlay" "${good}")
expect_chosen("${good}" "-DPython3_EXECUTABLE=${WORK}/python_of_pip")
expect_chosen("${venv_root}")

make_root("${WORK}/old_abi" 2 11 "${old_symbol}")
expect_refused("${WORK}/old_abi (from CMAKE_PREFIX_PATH) was built with the old C++ ABI"
  "-DCMAKE_PREFIX_PATH=${WORK}/old_abi")
make_root("${WORK}/too_old" 2 6 "${new_symbol}")
expect_refused("${WORK}/too_old (from Torch_DIR) is version 2.6.1; Ronde needs 2.7 or newer"
  "-DTorch_DIR=${WORK}/too_old/share/cmake/Torch")
expect_refused("/nonexistent (from LibTorch_ROOT) holds no include/torch"
  "-DLibTorch_ROOT=/nonexistent")
make_python(without_torch "|/site, /user")
expect_refused("${WORK}/without_torch has no torch package in /site, /user. Install torch there (pip install torch), or"
  "-DPython3_EXECUTABLE=${WORK}/without_torch")
expect_chosen("${good}" "-DPython3_EXECUTABLE=${WORK}/without_torch" "-DLibTorch_ROOT=${good}")

# Debian's layout: the package files below lib/<architecture>, and so are the libraries.
make_root("${WORK}/usr" 1 13 "${new_symbol}")
file(RENAME "${WORK}/usr/lib" "${WORK}/x86_64-linux-gnu")
file(COPY "${WORK}/x86_64-linux-gnu" DESTINATION "${WORK}/usr/lib")
expect_refused("${WORK}/usr (from Torch_DIR) is version 1.13.1; Ronde needs 2.7 or newer"
  "-DTorch_DIR=${WORK}/usr/lib/x86_64-linux-gnu/cmake/Torch")
expect_chosen("${venv_root}" "-DCMAKE_PREFIX_PATH=${WORK}/usr")
