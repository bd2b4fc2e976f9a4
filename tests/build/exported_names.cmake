# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=<nm> -DFILES=<library>,... [-DFOREIGN=<regular expression>] -P ...
# A shared library exports names of Ronde alone. A static one defines nothing in the namespaces of third
# parties, which the linker would merge with a program's own copies, perhaps of another version.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
string(REPLACE "," ";" FILES "${FILES}")
foreach(file IN LISTS FILES)
  if(file MATCHES "\\.a$")
    run_step("nm" "${NM}" --defined-only "${file}")
    # Also as arguments of templates, as in std::vector<fmt::...>; but ronde_fmt is 9ronde_fmt.
    string(REGEX MATCHALL " [A-Za-z] _Z[^\n]*[^0-9](3fmt|6spdlog|8nlohmann|3CLI)[^\n]*" foreign
      "${run_step_output}")
  else()
    run_step("nm" "${NM}" --dynamic --defined-only "${file}")
    string(REGEX REPLACE "[^\n]* (ronde_|_ZNK?5ronde|_ZT[ISTV]N5ronde|_ZT[hv][n0-9_]*_NK?5ronde|_ZGVN5ronde)[^\n]*\n?"
      "" foreign "${run_step_output}")
  endif()
  if(foreign)
    message(FATAL_ERROR "${file} lets out what is not Ronde's:\n${foreign}")
  endif()
  if(NOT run_step_output MATCHES "5ronde|ronde_")
    message(FATAL_ERROR "${file} has nothing of Ronde: is this the right file?")
  endif()
endforeach()
