# SPDX-License-Identifier: Apache-2.0
# Everything that a user may set, and the defaults that hold only where Ronde is the top-level
# project: as a subdirectory it changes nothing of its parent's.
include(GNUInstallDirs)
set(RONDE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/ronde")

foreach(feature TORCH MPI UCX CUDA)
  set(RONDE_WITH_${feature} AUTO CACHE STRING "Use ${feature}: AUTO (if found), ON (required), OFF")
  set_property(CACHE RONDE_WITH_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT RONDE_WITH_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR
      "RONDE_WITH_${feature}=${RONDE_WITH_${feature}} is not understood: use AUTO, ON or OFF.")
  endif()
endforeach()

if(PROJECT_IS_TOP_LEVEL)
  option(BUILD_SHARED_LIBS "Build shared libraries" ON)
endif()
option(RONDE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(RONDE_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(RONDE_BUILD_TOOLS "Build the ronde command" ${PROJECT_IS_TOP_LEVEL})
option(RONDE_BUILD_PYTHON "Build what the Python package holds (pip install ./python does)" OFF)
option(RONDE_BUILD_GPU "Build the backends for GPUs; OFF also leaves out the ronde command and the tests" ON)
option(RONDE_INSTALL "Generate install rules" ${PROJECT_IS_TOP_LEVEL})
# Other compilers than the one that Ronde is tested with warn of other things.
set(werror OFF)
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12")
  set(werror ON)
endif()
option(RONDE_WERROR "Treat warnings as errors" ${werror})
option(RONDE_UNITY "Compile several sources at once: faster, unless few change" OFF)
set(RONDE_SANITIZE "" CACHE STRING "Build everything with a sanitizer: thread or address")
set_property(CACHE RONDE_SANITIZE PROPERTY STRINGS "" thread address)

set(RONDE_BUILD_TYPE "${CMAKE_BUILD_TYPE}")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(RONDE_BUILD_TYPE Release)
  if(PROJECT_IS_TOP_LEVEL)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  else()
    # The parent's build type stays empty: Ronde alone is compiled with the flags of a release.
    foreach(language C CXX)
      string(APPEND CMAKE_${language}_FLAGS " ${CMAKE_${language}_FLAGS_RELEASE}")
    endforeach()
  endif()
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

  find_program(CCACHE_PROGRAM ccache)
  mark_as_advanced(CCACHE_PROGRAM)
  if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Precompiled headers are cached only with this sloppiness (ccache's manual, "Precompiled headers").
    # With a base folder, copies of the tree share what they compile. In depend mode ccache learns the headers
    # from the compiler's dependency file, in place of preprocessing each file once more.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_ABSSTDERR=1 CCACHE_DEPEND=1
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "${CCACHE_PROGRAM}")
  endif()
endif()

# Installed binaries find their libraries beside them, and LibTorch and MPI where the build found them.
file(RELATIVE_PATH RONDE_BIN_TO_LIB
  "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/${RONDE_BIN_TO_LIB}")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
