# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DWORK=<scratch> -DPYTHON=<of the environment that has torch> -DTORCH=<its torch package>
#       -DBACKEND=<folder of scikit-build-core> -DCC=<compiler> -DCXX=<compiler> -P ...
# `pip install ./python` into a virtual environment that sees torch, and what it has installed: the command, and two ranks.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
copy_tree("${SOURCE}" "${WORK}")

run_step("make the environment" "${PYTHON}" -m venv --without-pip "${WORK}/venv")
file(GLOB site "${WORK}/venv/lib/python3*/site-packages")
cmake_path(GET TORCH PARENT_PATH torch_site)
file(WRITE "${site}/torch.pth" "${torch_site}\n${BACKEND}\n")
set(python "${WORK}/venv/bin/python")
# In the folder, and by the compilers, where ccache has the objects of an ordinary build.
set(ENV{SKBUILD_BUILD_DIR} "${WORK}/build")
set(ENV{CC} "${CC}")
set(ENV{CXX} "${CXX}")
run_step("pip install" "${python}" -m pip --disable-pip-version-check --verbose
  install --no-build-isolation --no-index --no-deps "${WORK}/python")
expect_contains("${run_step_output}" " in ${TORCH}\n")

file(GLOB_RECURSE binaries RELATIVE "${site}/ronde" "${site}/ronde/*.so*" "${site}/ronde/bin/*")
list(FILTER binaries EXCLUDE REGEX "^_c10d\\.")
if(NOT binaries STREQUAL "bin/ronde;lib/libronde.so;lib/libronde_c.so;lib/libronde_core.so")
  message(FATAL_ERROR "the package holds ${binaries}")
endif()
foreach(binary bin/ronde lib/libronde_c.so)
  expect_ronde_libraries_below("${site}/ronde" "${site}/ronde/${binary}")
  if(run_step_output MATCHES "lib(mpi|ucp|cuda|nccl|torch|c10)[^\n]*")
    message(FATAL_ERROR "${binary} is linked with what is not there everywhere: ${CMAKE_MATCH_0}")
  endif()
endforeach()

set(command "${WORK}/venv/bin/ronde")
run_step("ronde info" "${command}" info)
run_step("two ranks" "${command}" run -n 2 -- "${python}" "${CMAKE_CURRENT_LIST_DIR}/wheel_rank.py")
expect_contains("${run_step_output}" "[1] the sum is 3")
