# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DCONSUMER=<source> -DWORK=<scratch> -DGENERATOR=<g> -DBUILD_TYPE=<type>
#       -DWERROR=<bool> -DUNITY=<bool> -DCCACHE=<program> -P ...
# Ronde as a subdirectory of another project, as static libraries (that project asks for none else). Only
# what its programs link is built. LibTorch and the kernels for GPUs, which take nvcc longer than all the
# rest takes, are left out: they are built the same way, and the installed consumer has them.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
copy_tree("${SOURCE}" "${WORK}")

# The project that includes Ronde decides on ccache: this one has what RondeOptions.cmake sets.
if(CCACHE)
  set(launcher "-DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE}")
  set(ENV{CCACHE_BASEDIR} "${WORK}")
  set(ENV{CCACHE_ABSSTDERR} 1)
endif()
run_step("configure" "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}/build" -G "${GENERATOR}"
  "-DRONDE_SOURCE=${WORK}" -DRONDE_WITH_TORCH=OFF -DRONDE_WITH_CUDA=OFF
  "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" "-DRONDE_WERROR=${WERROR}" "-DRONDE_UNITY=${UNITY}" ${launcher})
set(programs use_c use_core use_ronde)
expect_programs(${programs})
run_step("build" "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2 --target ${programs})
foreach(program IN LISTS programs)
  run_step("run ${program}" "${WORK}/build/${program}")
endforeach()
