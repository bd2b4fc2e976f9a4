# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DCONSUMER=<source> -DWORK=<scratch> -DGENERATOR=<g> -DWERROR=<bool>
#       -DUNITY=<bool> -DCCACHE=<program> -DNM=<nm> -P ...
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
  -DRONDE_INSTALL=ON -DRONDE_BUILD_TOOLS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  "-DRONDE_WERROR=${WERROR}" "-DRONDE_UNITY=${UNITY}" ${launcher})
set(programs use_c use_core use_ronde)
expect_programs(${programs})

# That project has no build type. Ronde is compiled for speed all the same, and the project is not.
file(STRINGS "${WORK}/build/compile_commands.json" of_ronde REGEX "-c [^ ]*/core/src/base/log\\.cc")
file(STRINGS "${WORK}/build/compile_commands.json" of_parent REGEX "-c [^ ]*/use_core\\.cc")
expect_contains("${of_ronde}" " -O3 -DNDEBUG ")
if(NOT of_parent OR of_parent MATCHES " -O[1-3]")
  message(FATAL_ERROR "use_core is not compiled as its project says: ${of_parent}")
endif()

# What was built is installed, and the package offers nothing else.
run_step("build core" "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2 --target ronde_core)
run_step("install core" "${CMAKE_COMMAND}" --install "${WORK}/build" --prefix "${WORK}/prefix")
expect_contains("${run_step_output}" "Not built, so not installed: ronde_c\n")
run_step("configure with core alone" "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}/with_core"
  -G "${GENERATOR}" "-DCMAKE_PREFIX_PATH=${WORK}/prefix")
expect_programs(use_core)

run_step("build" "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2 --target ${programs})
foreach(program IN LISTS programs)
  run_step("run ${program}" "${WORK}/build/${program}")
endforeach()
file(GLOB_RECURSE archives "${WORK}/build/ronde/*.a")
list(JOIN archives "," archives)
run_step("look for names of others" "${CMAKE_COMMAND}" "-DNM=${NM}" "-DFILES=${archives}"
  -P "${CMAKE_CURRENT_LIST_DIR}/exported_names.cmake")
