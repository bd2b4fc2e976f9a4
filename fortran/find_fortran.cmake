# SPDX-License-Identifier: Apache-2.0
# RONDE_HAVE_FORTRAN: whether the tests and the example in Fortran can be compiled. Ronde itself has no Fortran.
set(RONDE_HAVE_FORTRAN FALSE)
if(RONDE_BUILD_API AND (RONDE_BUILD_TESTS OR RONDE_BUILD_EXAMPLES) AND NOT RONDE_SANITIZE)
  if(NOT CMAKE_Fortran_COMPILER)
    unset(CMAKE_Fortran_COMPILER CACHE)  # one may have been installed since the last configure
  endif()
  include(CheckLanguage)
  check_language(Fortran)
  if(CMAKE_Fortran_COMPILER)
    enable_language(Fortran)
    set(RONDE_HAVE_FORTRAN TRUE)
  endif()
endif()
