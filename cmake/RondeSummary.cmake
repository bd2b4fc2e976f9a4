# SPDX-License-Identifier: Apache-2.0
# The configure summary: what was found, what was not, and what therefore will be built.
function(ronde_summary_feature label feature)
  if(RONDE_FOUND_${feature})
    message(STATUS "  ${label} ${RONDE_FOUND_${feature}}: ${RONDE_REMARK_${feature}}")
  else()
    message(STATUS "  ${label} ${RONDE_REMARK_${feature}}")
  endif()
endfunction()

function(ronde_summary_target label target why_not)
  if(TARGET ${target})
    message(STATUS "  ${label} yes")
  else()
    message(STATUS "  ${label} no (${why_not})")
  endif()
endfunction()

if(BUILD_SHARED_LIBS)
  set(RONDE_LIBRARY_KIND shared)
else()
  set(RONDE_LIBRARY_KIND static)
endif()
message(STATUS "Ronde ${PROJECT_VERSION}: ${RONDE_BUILD_TYPE_TEXT}, ${RONDE_LIBRARY_KIND} libraries, "
  "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
message(STATUS " found")
ronde_summary_feature("LibTorch     " TORCH)
ronde_summary_feature("MPI          " MPI)
ronde_summary_feature("UCX          " UCX)
ronde_summary_feature("CUDA         " CUDA)
message(STATUS "  spdlog        ${spdlog_VERSION}")
message(STATUS "  libsodium     ${Sodium_VERSION}")
if(nlohmann_json_FOUND)
  message(STATUS "  nlohmann-json ${nlohmann_json_VERSION}")
else()
  message(STATUS "  nlohmann-json not found: only core and its unit tests are built "
    "(Debian: nlohmann-json3-dev)")
endif()
if(RONDE_BUILD_TESTS)
  message(STATUS "  Catch2        ${Catch2_VERSION}")
endif()
message(STATUS " built")
ronde_summary_target("ronde::core   " ronde_core "its sources are missing")
ronde_summary_target("ronde::ronde  " ronde "needs nlohmann-json")
ronde_summary_target("ronde::c      " ronde_c "needs nlohmann-json")
ronde_summary_target("ronde::torch  " ronde_torch "needs LibTorch and nlohmann-json")
ronde_summary_target("ronde command " ronde_tool "RONDE_BUILD_TOOLS or RONDE_BUILD_GPU=OFF, or no CLI11 or nlohmann-json")
ronde_summary_target("edsr example  " edsr
  "RONDE_BUILD_EXAMPLES=OFF, or no LibTorch, libturbojpeg, libpng, CLI11 or nlohmann-json")
ronde_summary_target("resnet example" resnet_synthetic
  "RONDE_BUILD_EXAMPLES=OFF, or no LibTorch, CLI11 or nlohmann-json")
ronde_summary_target("digits example" digits
  "RONDE_BUILD_EXAMPLES=OFF, or no LibTorch, zlib, CLI11 or nlohmann-json")
ronde_summary_target("hybrid example" hybrid
  "RONDE_BUILD_EXAMPLES=OFF, or no LibTorch, zlib, CLI11 or nlohmann-json")
ronde_summary_target("gan example   " gan
  "RONDE_BUILD_EXAMPLES=OFF, or no LibTorch, CLI11 or nlohmann-json")
ronde_summary_target("kmeans example" kmeans
  "RONDE_BUILD_EXAMPLES=OFF, or no zlib, CLI11 or nlohmann-json")
