# SPDX-License-Identifier: Apache-2.0
# cmake -DDOXYGEN=<doxygen> -DDOXYFILE=<file> [-DINPUT=<folder>] -P ...
# Writes the reference of the public headers, and fails if Doxygen warns: of what it does not
# understand, and of classes, functions, types, constants and fields without a comment. Two kinds need
# none: members that copy and move, and fields of values_told_together.
if(NOT DOXYGEN)
  message("skipped: no doxygen (Debian: apt-get install doxygen)")
  return()
endif()

get_filename_component(folder "${DOXYFILE}" DIRECTORY)
set(log "${folder}/doxygen.log")
if(INPUT)
  # Other headers than the public ones, without output.
  get_filename_component(name "${INPUT}" NAME)
  set(log "${folder}/${name}.log")
  file(WRITE "${folder}/${name}.doxyfile" "\
@INCLUDE = \"${DOXYFILE}\"
INPUT = \"${INPUT}\"
USE_MDFILE_AS_MAINPAGE =
GENERATE_HTML = NO
WARN_LOGFILE = \"${log}\"
")
  set(DOXYFILE "${folder}/${name}.doxyfile")
endif()

execute_process(COMMAND "${DOXYGEN}" "${DOXYFILE}"
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${DOXYGEN} ${DOXYFILE}: ${status}\n${output}")
endif()

# Small structs whose own comment says what their fields mean, one with the other.
set(values_told_together
  [A-Za-z]+Call  # of Backend
  Segment Device Topology ProcessSet StatsGroup Incoming Board::Word
  Reduction Scaling Conversion Blend  # of Kernels
  ronde_rank_list)
list(JOIN values_told_together "|" values_told_together)

file(STRINGS "${log}" lines)
set(warnings "")
foreach(line IN LISTS lines)
  set(is_field FALSE)
  set(is_copy FALSE)
  if(line MATCHES
    "Member .* \\(variable\\) of struct (ronde::)?(${values_told_together}) is not documented")
    set(is_field TRUE)
  elseif(line MATCHES "Member ([A-Za-z0-9_=]+) ?\\((const )?([A-Za-z0-9_]+) &.* is not documented")
    if(CMAKE_MATCH_1 STREQUAL CMAKE_MATCH_3 OR CMAKE_MATCH_1 STREQUAL "operator=")
      set(is_copy TRUE)
    endif()
  endif()
  if(NOT is_field AND NOT is_copy)
    string(APPEND warnings "\n  ${line}")
  endif()
endforeach()
if(warnings)
  message(FATAL_ERROR "Doxygen warns:${warnings}")
endif()
