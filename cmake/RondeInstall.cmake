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

# `cpack` in the build folder makes a .deb and a .tar.gz of what is installed. LibTorch is no Debian package: the
# program that links libronde_torch brings its own.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR TGZ DEB)
  set(CPACK_PACKAGE_NAME ronde)
  set(CPACK_PACKAGE_VENDOR "The authors of Ronde")
  set(CPACK_PACKAGE_CONTACT "The authors of Ronde <ronde@localhost>")
  set(CPACK_PACKAGE_CHECKSUM SHA256)
  set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  if(RONDE_HAVE_UCX)
    set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libucx0)  # found at run time
  endif()
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/lib" "${LibTorch_LIBRARY_DIR}")
  include(CPack)
endif()
