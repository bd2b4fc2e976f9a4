# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DCONSUMER=<source> -DWORK=<scratch> -DGENERATOR=<g> -DBUILD_TYPE=<type>
#       -DWERROR=<bool> -DUNITY=<bool> -P ...
# With a compiler, spdlog, libsodium and Catch2 and nothing else, the tree configures with its tests, core builds, and
# a program outside the tree links nothing else. The unit tests run in the build that runs this test. The
# flags are those of that build: ccache, where there is one, has the objects.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
copy_tree("${SOURCE}" "${WORK}")

run_step("configure" "${CMAKE_COMMAND}" -S "${WORK}" -B "${WORK}/build" -G "${GENERATOR}"
  -DRONDE_WITH_TORCH=OFF -DRONDE_WITH_MPI=OFF -DRONDE_WITH_CUDA=OFF
  -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON
  -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_LibTorch=ON
  "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" "-DRONDE_WERROR=${WERROR}" "-DRONDE_UNITY=${UNITY}"
  --no-warn-unused-cli)
expect_contains("${run_step_output}" "nlohmann-json not found")
run_step("build" "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2 --target ronde_core)
run_step("install" "${CMAKE_COMMAND}" --install "${WORK}/build" --prefix "${WORK}/prefix")
run_step("configure the consumer" "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}/consumer"
  -G "${GENERATOR}" "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}")
expect_programs(use_core)
run_step("build the consumer" "${CMAKE_COMMAND}" --build "${WORK}/consumer")
run_step("run use_core" "${WORK}/consumer/use_core")
expect_ronde_libraries_below("${WORK}/prefix" "${WORK}/consumer/use_core")
if(run_step_output MATCHES "libmpi|libtorch|libc10|libcudart|libnccl")
  message(FATAL_ERROR "core links what it must not:\n${run_step_output}")
endif()
