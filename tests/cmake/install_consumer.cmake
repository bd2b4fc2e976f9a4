# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=<build> -DCONSUMER=<source> -DWORK=<scratch> -DGENERATOR=<g> -DBUILD_TYPE=<type> -P ...
# Installs this build into an empty prefix; a project that is told only CMAKE_PREFIX_PATH must
# configure, build and run with it, and must take Ronde's libraries from that prefix.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
file(REMOVE_RECURSE "${WORK}")
set(prefix "${WORK}/prefix")

run_step("install" "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")
run_step("configure" "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}/build" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" --no-warn-unused-cli)
string(REGEX MATCHALL "use_[a-z]+" programs "${run_step_output}")
run_step("build" "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2)
if(NOT programs MATCHES "use_core")
  message(FATAL_ERROR "the consumer found no ronde::core")
endif()
foreach(program IN LISTS programs)
  run_step("run ${program}" "${WORK}/build/${program}")
  expect_ronde_libraries_below("${prefix}" "${WORK}/build/${program}")
endforeach()

# A program without tensors asks for less, and must get it where no LibTorch can be found.
run_step("configure for the core alone"
  "${CMAKE_COMMAND}" -E env LibTorch_ROOT=/nonexistent
  "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}/core" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" -DRONDE_COMPONENTS=core)
# A program that knows no C++ gets the C interface, without a C++ compiler to find it.
if(EXISTS "${prefix}/include/ronde/ronde_c.h")
  run_step("configure for C" "${CMAKE_COMMAND}" -E env LibTorch_ROOT=/nonexistent CXX=/nonexistent
    "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}/c" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" -DRONDE_COMPONENTS=c -DLANGUAGES=C)
  run_step("build for C" "${CMAKE_COMMAND}" --build "${WORK}/c")
  run_step("run use_c" "${WORK}/c/use_c")
  expect_ronde_libraries_below("${prefix}" "${WORK}/c/use_c")
endif()
if(EXISTS "${prefix}/bin/ronde")
  run_step("run the installed command" "${prefix}/bin/ronde" info)
endif()
