# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DCONSUMER=<source> -DWORK=<scratch> -DGENERATOR=<g> -P ...
# Ronde as a subdirectory of another project, as static libraries (that project asks for none else).
# LibTorch is left out: its part is built the same way, and the installed consumer uses it.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
file(REMOVE_RECURSE "${WORK}")

find_program(ccache ccache)
if(ccache)
  set(launcher "-DCMAKE_CXX_COMPILER_LAUNCHER=${ccache}")
endif()
run_step("configure" "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}" -G "${GENERATOR}"
  "-DRONDE_SOURCE=${SOURCE}" -DRONDE_WITH_TORCH=OFF -DCMAKE_BUILD_TYPE=Debug ${launcher})
string(REGEX MATCH "install_consumer: [^\n]*" line "${run_step_output}")
string(REGEX MATCHALL "use_[a-z]+" programs "${line}")
run_step("build" "${CMAKE_COMMAND}" --build "${WORK}" --parallel 2)
if(NOT programs MATCHES "use_core")
  message(FATAL_ERROR "the consumer got no ronde::core")
endif()
foreach(program IN LISTS programs)
  run_step("run ${program}" "${WORK}/${program}")
endforeach()
