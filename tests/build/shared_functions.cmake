# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=<nm> -DOBJECTS=<file: a list of object files> -DFILTER=<regular expression> -P ...
# The objects that match leave no function to be merged with other files' copies: see Note [One
# instruction set a file] in core/src/kernels/instruction_set.h.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
file(STRINGS "${OBJECTS}" objects)
list(FILTER objects INCLUDE REGEX "${FILTER}")
if(NOT objects)
  message(FATAL_ERROR "no object file matches ${FILTER}")
endif()
foreach(object IN LISTS objects)
  run_step("nm" "${NM}" --demangle --defined-only "${object}")
  string(REGEX MATCHALL " [WVwvu] [^\n]*" shared "${run_step_output}")
  if(shared)
    list(JOIN shared "\n  " shared)
    message(FATAL_ERROR "${object} shares functions with other files:\n  ${shared}")
  endif()
  if(NOT run_step_output MATCHES "ronde::kernels::k[A-Z]")
    message(FATAL_ERROR "${object} has no set of kernels: is this the right file?")
  endif()
endforeach()
list(LENGTH objects count)
message(STATUS "${count} object files share no function")
