# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DWORK=<scratch> -DGENERATOR=<g> -DBUILD_TYPE=<type> -DWERROR=<bool> -P ...
# With a compiler, spdlog and Catch2 and nothing else, core builds and its unit tests run. The flags are
# those of the build that runs this test: ccache, where there is one, has the objects.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
copy_tree("${SOURCE}" "${WORK}")

run_step("configure" "${CMAKE_COMMAND}" -S "${WORK}" -B "${WORK}/build" -G "${GENERATOR}"
  -DRONDE_WITH_TORCH=OFF -DRONDE_WITH_MPI=OFF -DRONDE_WITH_CUDA=OFF
  -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON
  -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_LibTorch=ON
  "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" "-DRONDE_WERROR=${WERROR}" --no-warn-unused-cli)
expect_contains("${run_step_output}" "nlohmann-json not found")
run_step("build" "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2 --target unit_tests)
run_step("ldd" ldd "${WORK}/build/bin/unit_tests")
if(run_step_output MATCHES "libmpi|libtorch|libc10|libcudart|libnccl")
  message(FATAL_ERROR "the unit tests link what they must not:\n${run_step_output}")
endif()
# All in one process; ctest runs the same cases one by one in the build that runs this test.
run_step("unit tests" "${WORK}/build/bin/unit_tests")
expect_contains("${run_step_output}" "All tests passed")
