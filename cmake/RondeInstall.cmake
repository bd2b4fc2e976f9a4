# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
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
  "${RONDE_CMAKE_DIR}/FindSodium.cmake"
  DESTINATION "${RONDE_PACKAGE_DIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
