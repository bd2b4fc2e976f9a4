# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(RONDE_PACKAGE_HAS_API FALSE)
set(RONDE_PACKAGE_HAS_TORCH FALSE)
set(RONDE_PACKAGE_HAS_MPI FALSE)
if(TARGET ronde)
  set(RONDE_PACKAGE_HAS_API TRUE)
  set(RONDE_PACKAGE_HAS_MPI ${RONDE_HAVE_MPI})
endif()
if(TARGET ronde_torch)
  set(RONDE_PACKAGE_HAS_TORCH TRUE)
endif()

set(RONDE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/ronde")
configure_package_config_file("${RONDE_CMAKE_DIR}/ronde-config.cmake.in"
  "${PROJECT_BINARY_DIR}/package/ronde-config.cmake"
  INSTALL_DESTINATION "${RONDE_PACKAGE_DIR}"
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/ronde-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/package/ronde-config.cmake"
  "${PROJECT_BINARY_DIR}/package/ronde-config-version.cmake"
  "${RONDE_CMAKE_DIR}/FindLibTorch.cmake"
  DESTINATION "${RONDE_PACKAGE_DIR}")
install(EXPORT ronde-targets NAMESPACE ronde:: DESTINATION "${RONDE_PACKAGE_DIR}")
if(RONDE_PACKAGE_HAS_TORCH)
  install(EXPORT ronde-torch-targets NAMESPACE ronde:: DESTINATION "${RONDE_PACKAGE_DIR}")
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
