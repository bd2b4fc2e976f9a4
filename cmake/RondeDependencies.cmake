# SPDX-License-Identifier: Apache-2.0
# Finds everything that Ronde can use. Each optional feature ends as RONDE_HAVE_<F> (built in) and
# RONDE_FOUND_<F> (the version found, or empty), which the summary and `ronde info` report.
find_package(Threads REQUIRED)
find_package(spdlog QUIET)
if(NOT spdlog_FOUND)
  message(FATAL_ERROR "spdlog was not found; the core needs it. Install libspdlog-dev (Debian) or "
    "give its prefix in CMAKE_PREFIX_PATH.")
endif()

find_package(Sodium QUIET)
if(NOT Sodium_FOUND)
  message(FATAL_ERROR "libsodium was not found; the control plane needs it. Install libsodium-dev (Debian) or "
    "give its prefix in CMAKE_PREFIX_PATH.")
endif()

# Ends a feature's search: ON and not found is an error that says what to do.
function(ronde_conclude_feature feature found version what_to_do)
  set(RONDE_HAVE_${feature} FALSE)
  set(RONDE_FOUND_${feature} "")
  if(found)
    set(RONDE_HAVE_${feature} TRUE)
    set(RONDE_FOUND_${feature} "${version}")
  elseif(RONDE_WITH_${feature} STREQUAL ON)
    message(FATAL_ERROR "RONDE_WITH_${feature}=ON, but it was not found. ${what_to_do}")
  endif()
  set(RONDE_HAVE_${feature} ${RONDE_HAVE_${feature}} PARENT_SCOPE)
  set(RONDE_FOUND_${feature} "${RONDE_FOUND_${feature}}" PARENT_SCOPE)
endfunction()

set(RONDE_MPI_LIBRARY "")
if(NOT RONDE_WITH_MPI STREQUAL OFF)
  # The C interface alone: MPI's old C++ bindings would tie us to one vendor's C++ library.
  set(MPI_DETERMINE_LIBRARY_VERSION ON)
  find_package(MPI 3.1 QUIET COMPONENTS C)
  if(MPI_C_FOUND AND MPI_C_LIBRARY_VERSION_STRING)
    string(REGEX REPLACE "[\t\r\n].*" "" RONDE_MPI_LIBRARY
      "${MPI_C_LIBRARY_VERSION_STRING}")
    if(MPI_C_LIBRARY_VERSION_STRING MATCHES "(MPICH|MVAPICH2?) Version:[ \t]*([0-9.a-z]+)")
      set(RONDE_MPI_LIBRARY "${CMAKE_MATCH_1} ${CMAKE_MATCH_2}")
    endif()
  endif()
endif()
ronde_conclude_feature(MPI "${MPI_C_FOUND}" "MPI ${MPI_C_VERSION}, ${RONDE_MPI_LIBRARY}"
  "Install an MPI 3.1 or newer (Debian: mpich libmpich-dev), or set MPI_HOME, or RONDE_WITH_MPI=OFF.")

# Its headers: the library is loaded at run time.
set(ucx_version "")
set(ucx_refused "")
if(NOT RONDE_WITH_UCX STREQUAL OFF)
  find_path(RONDE_UCX_INCLUDE_DIR ucp/api/ucp.h)
  mark_as_advanced(RONDE_UCX_INCLUDE_DIR)
  if(RONDE_UCX_INCLUDE_DIR)
    file(STRINGS "${RONDE_UCX_INCLUDE_DIR}/ucp/api/ucp_version.h" ucx_numbers
      REGEX "UCP_API_(MAJOR|MINOR)[ \t]+[0-9]")
    string(REGEX REPLACE ".*MAJOR[ \t]+([0-9]+).*MINOR[ \t]+([0-9]+).*" "\\1.\\2" ucx_version "${ucx_numbers}")
    if(NOT ucx_version VERSION_GREATER_EQUAL 1.12)
      set(ucx_refused " The headers in ${RONDE_UCX_INCLUDE_DIR} are of UCX ${ucx_version}.")
      set(ucx_version "")
    endif()
  endif()
endif()
ronde_conclude_feature(UCX "${ucx_version}" "${ucx_version}"
  "Install UCX 1.12 or newer with its headers (Debian: libucx-dev), or set RONDE_UCX_INCLUDE_DIR, \
or RONDE_WITH_UCX=OFF.${ucx_refused}")
if(ucx_refused AND RONDE_WITH_UCX STREQUAL AUTO)
  message(STATUS "UCX is left out: 1.12 or newer is needed.${ucx_refused}")
endif()

if(NOT RONDE_WITH_TORCH STREQUAL OFF)
  find_package(LibTorch QUIET)
endif()
if(LibTorch_FOUND)
  set(torch_text "${LibTorch_VERSION}")
  if(LibTorch_CUDA_VERSION)
    string(APPEND torch_text " (built with CUDA ${LibTorch_CUDA_VERSION})")
  endif()
endif()
ronde_conclude_feature(TORCH "${LibTorch_FOUND}" "${torch_text}"
  "Run scripts/deps.sh (it installs PyPI's torch into ${RONDE_VENV}), or set Torch_DIR, \
LibTorch_ROOT or Python3_EXECUTABLE, or RONDE_WITH_TORCH=OFF.${LibTorch_REFUSED}")

if(NOT RONDE_WITH_CUDA STREQUAL OFF)
  find_package(CUDAToolkit QUIET)
endif()
ronde_conclude_feature(CUDA "${CUDAToolkit_FOUND}" "${CUDAToolkit_VERSION}"
  "Install the CUDA Toolkit 12 or 13, or set CUDAToolkit_ROOT, or RONDE_WITH_CUDA=OFF.")

if(RONDE_BUILD_TESTS)
  find_package(Catch2 QUIET)
  if(NOT Catch2_FOUND)
    message(FATAL_ERROR "Catch2 (2 or 3) was not found; the tests need it. Install catch2 (Debian), "
      "or set RONDE_BUILD_TESTS=OFF.")
  endif()
endif()

# The free functions report statistics as JSON; core and the in-process backend do without.
find_package(nlohmann_json 3.9 QUIET)
set(RONDE_BUILD_API ${nlohmann_json_FOUND})
if(RONDE_WITH_TORCH STREQUAL ON AND NOT RONDE_BUILD_API)
  message(FATAL_ERROR "RONDE_WITH_TORCH=ON needs nlohmann-json (Debian: nlohmann-json3-dev).")
endif()

# Headers alone, which Ronde's libraries include by core/src/base/{fmt,json}.h, and log.cc: not linked, and none
# of the package's business.
add_library(ronde_third_parties INTERFACE)
foreach(target spdlog::spdlog_header_only fmt::fmt nlohmann_json::nlohmann_json)
  if(TARGET ${target})
    target_include_directories(ronde_third_parties SYSTEM INTERFACE
      $<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>)
  endif()
endforeach()
target_compile_definitions(ronde_third_parties INTERFACE
  $<TARGET_PROPERTY:spdlog::spdlog_header_only,INTERFACE_COMPILE_DEFINITIONS>)

if(RONDE_BUILD_TOOLS OR RONDE_BUILD_EXAMPLES)
  find_package(CLI11 QUIET)
endif()
