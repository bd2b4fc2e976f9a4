# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DWORK=<scratch> -DGENERATOR=<g> -DFEATURE=<F> -DADVICE=<text> -P ...
# RONDE_WITH_<F>=ON without <F> must end the configure step and say what to install.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
file(REMOVE_RECURSE "${WORK}")
set(others TORCH MPI CUDA)
list(REMOVE_ITEM others ${FEATURE})
file(WRITE "${WORK}/old/ucp/api/ucp_version.h" "#define UCP_API_MAJOR    1\n#define UCP_API_MINOR    11\n")
list(TRANSFORM others REPLACE "(.+)" "-DRONDE_WITH_\\1=OFF")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}" -G "${GENERATOR}" ${others}
    -DRONDE_WITH_${FEATURE}=ON -DRONDE_BUILD_TESTS=OFF "-DRONDE_UCX_INCLUDE_DIR=${WORK}/old"
    -DCMAKE_DISABLE_FIND_PACKAGE_${PACKAGE}=ON
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
if(status EQUAL 0)
  message(FATAL_ERROR "RONDE_WITH_${FEATURE}=ON was accepted without ${FEATURE}:\n${output}")
endif()
string(REGEX REPLACE "[ \n]+" " " output "${output}")
expect_contains("${output}" "RONDE_WITH_${FEATURE}=ON, but it was not found.")
expect_contains("${output}" "${ADVICE}")
