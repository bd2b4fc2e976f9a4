# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=<nm> -DOBJECTS=<file: a list of object files> -DFILTER=<regular expression> -P ...
# The objects that match leave no function to be merged with other files' copies: see Note [One
# instruction set a file] in core/src/kernels/instruction_set.h.
file(STRINGS "${OBJECTS}" objects)
list(FILTER objects INCLUDE REGEX "${FILTER}")
if(NOT objects)
  message(FATAL_ERROR "no object file matches ${FILTER}")
endif()
foreach(object IN LISTS objects)
  execute_process(COMMAND "${NM}" --demangle --defined-only "${object}"
    OUTPUT_VARIABLE symbols ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${NM} ${object}: ${status}\n${errors}")
  endif()
  string(REGEX MATCHALL " [WVwvu] [^\n]*" shared "${symbols}")
  if(shared)
    list(JOIN shared "\n  " shared)
    message(FATAL_ERROR "${object} shares functions with other files:\n  ${shared}")
  endif()
  if(NOT symbols MATCHES "ronde::kernels::k[A-Z]")
    message(FATAL_ERROR "${object} has no set of kernels: is this the right file?")
  endif()
endforeach()
list(LENGTH objects count)
message(STATUS "${count} object files share no function")
