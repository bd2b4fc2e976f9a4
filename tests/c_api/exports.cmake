# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=<nm> -DLIBRARY=<libronde_c.so> -DHEADER=<ronde_c.h> -P ...
# The library exports the functions that the header declares, all of them, and nothing else.
execute_process(COMMAND "${NM}" --dynamic --defined-only "${LIBRARY}"
  OUTPUT_VARIABLE symbols ERROR_VARIABLE errors RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NM} ${LIBRARY}: ${status}\n${errors}")
endif()
string(REGEX MATCHALL " [A-Za-z] [^\n]+" exported "${symbols}")
list(TRANSFORM exported REPLACE "^ [A-Za-z] " "")
file(READ "${HEADER}" text)
string(REGEX MATCHALL "RONDE_C_API [a-z][a-z* ]*ronde_[a-z_]+\\(" declared "${text}")
list(TRANSFORM declared REPLACE ".*(ronde_[a-z_]+)\\($" "\\1")
list(SORT exported)
list(SORT declared)
list(LENGTH declared count)
if(count LESS 40 OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "declared (${count}): ${declared}\nexported: ${exported}")
endif()
message(STATUS "${count} functions")
