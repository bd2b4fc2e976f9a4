# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=<build> -DCONSUMER=<source> -DPROGRAMS=<name,...> -DPAGE=<getting_started.md>
#       -DMPIEXEC=<program> -DMPIEXEC_RANKS=<flag> -DCCACHE=<program> -DWORK=<scratch> -DGENERATOR=<g>
#       -DBUILD_TYPE=<type> -DCC=<C compiler> -DPKG_CONFIG=<program> -DLIBRARIES=<lib> -DFC=<Fortran compiler>
#       -DMODULE=<ronde.f90 below the prefix> -P ...
# Installs this build into an empty prefix. Projects that are told only CMAKE_PREFIX_PATH must configure,
# build and run with it, alone and on two ranks, and must take Ronde's libraries from that prefix.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
file(REMOVE_RECURSE "${WORK}")
set(prefix "${WORK}/prefix")
string(REPLACE "," ";" PROGRAMS "${PROGRAMS}")
set(two_ranks "${CMAKE_COMMAND}" -E env OMP_NUM_THREADS=1 "${MPIEXEC}" "${MPIEXEC_RANKS}" 2)
if(CCACHE)
  set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${CCACHE}")
  cmake_path(GET BUILD PARENT_PATH folder)
  set(ENV{CCACHE_BASEDIR} "${folder}")
endif()

# configure_consumer(<source> <build> <option>...)
function(configure_consumer source build)
  run_step("configure ${build}" "${CMAKE_COMMAND}" -S "${source}" -B "${build}" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" --no-warn-unused-cli ${ARGN})
  set(run_step_output "${run_step_output}" PARENT_SCOPE)
endfunction()

run_step("install" "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")
configure_consumer("${CONSUMER}" "${WORK}/build")
expect_programs(${PROGRAMS})
run_step("build" "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2)
foreach(program IN LISTS PROGRAMS)
  run_step("run ${program}" "${WORK}/build/${program}")
  expect_ronde_libraries_below("${prefix}" "${WORK}/build/${program}")
endforeach()
if(MPIEXEC AND use_ronde IN_LIST PROGRAMS)
  run_step("run use_ronde on two ranks" ${two_ranks} "${WORK}/build/use_ronde" 2)
endif()

# The project of the page for beginners, word for word.
if(use_torch IN_LIST PROGRAMS)
  file(READ "${PAGE}" page)
  foreach(block cpp cmake)
    if(NOT page MATCHES "\n```${block}\n([^`]*)```")
      message(FATAL_ERROR "${PAGE} has no block of ${block}")
    endif()
    set(${block} "${CMAKE_MATCH_1}")
  endforeach()
  file(WRITE "${WORK}/train/train.cc" "${cpp}")
  file(WRITE "${WORK}/train/CMakeLists.txt" "${cmake}")
  configure_consumer("${WORK}/train" "${WORK}/train/build")
  run_step("build train" "${CMAKE_COMMAND}" --build "${WORK}/train/build")
  expect_ronde_libraries_below("${prefix}" "${WORK}/train/build/train")
  if(MPIEXEC)
    run_step("run train on two ranks" ${two_ranks} "${WORK}/train/build/train")
  endif()
endif()

# A program without tensors asks for less, and must get it where no LibTorch can be found.
set(ENV{LibTorch_ROOT} /nonexistent)
configure_consumer("${CONSUMER}" "${WORK}/core" -DRONDE_COMPONENTS=core)
# A program that knows no C++ gets the C interface, without a C++ compiler to find it.
if(use_c IN_LIST PROGRAMS)
  set(ENV{CXX} /nonexistent)
  configure_consumer("${CONSUMER}" "${WORK}/c" -DRONDE_COMPONENTS=c -DLANGUAGES=C)
  run_step("build for C" "${CMAKE_COMMAND}" --build "${WORK}/c")
  run_step("run use_c" "${WORK}/c/use_c")
  expect_ronde_libraries_below("${prefix}" "${WORK}/c/use_c")
endif()
# Nor needs it CMake.
if(use_c IN_LIST PROGRAMS AND PKG_CONFIG)
  set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBRARIES}/pkgconfig")
  run_step("ask pkg-config" "${PKG_CONFIG}" --cflags --libs ronde_c)
  separate_arguments(flags UNIX_COMMAND "${run_step_output}")
  run_step("compile by pkg-config" "${CC}" "${CONSUMER}/use_c.c" -o "${WORK}/use_c" ${flags}
    "-Wl,-rpath,${prefix}/${LIBRARIES}")
  run_step("run use_c of pkg-config" "${WORK}/use_c")
  expect_ronde_libraries_below("${prefix}" "${WORK}/use_c")
elseif(use_c IN_LIST PROGRAMS)
  message(STATUS "no pkg-config here: ronde_c.pc is not tried")
endif()
# A program in Fortran compiles the module itself.
if(use_c IN_LIST PROGRAMS AND NOT EXISTS "${prefix}/${MODULE}")
  message(FATAL_ERROR "${prefix}/${MODULE} was not installed")
endif()
if(use_c IN_LIST PROGRAMS AND PKG_CONFIG AND FC)
  run_step("compile Fortran by pkg-config" "${CMAKE_COMMAND}" -E chdir "${WORK}"
    "${FC}" "${prefix}/${MODULE}" "${CONSUMER}/use_fortran.f90" -o use_fortran ${flags}
    "-Wl,-rpath,${prefix}/${LIBRARIES}")
  run_step("run use_fortran" "${WORK}/use_fortran")
  expect_ronde_libraries_below("${prefix}" "${WORK}/use_fortran")
endif()
if(EXISTS "${prefix}/bin/ronde")
  run_step("run the installed command" "${prefix}/bin/ronde" info)
endif()
