# SPDX-License-Identifier: Apache-2.0
# cmake -P discover_cases.cmake <parameters>: asks a test program for its cases and writes one
# add_test per case (and number of ranks) into the file that ctest includes.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_ARGV3}")

set(ENV{TSAN_OPTIONS} "")
execute_process(COMMAND ${launcher} "${program}" --ronde-list
  OUTPUT_VARIABLE listing ERROR_VARIABLE error RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${program} --ronde-list failed (${status}):\n${listing}${error}")
endif()

# These three characters mean something in CMake's lists; they travel as control characters.
string(ASCII 1 open)
string(ASCII 2 close)
string(ASCII 3 semicolon)
string(REPLACE "[" "${open}" listing "${listing}")
string(REPLACE "]" "${close}" listing "${listing}")
string(REPLACE ";" "${semicolon}" listing "${listing}")
string(REGEX REPLACE "\n$" "" listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")

function(restore variable)
  set(text "${${variable}}")
  string(REPLACE "${open}" "[" text "${text}")
  string(REPLACE "${close}" "]" text "${text}")
  string(REPLACE "${semicolon}" ";" text "${text}")
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

function(add_case name spec wanted_ranks)
  set(command ${launcher} "${program}")
  if(wanted_ranks)
    string(APPEND name "@n${wanted_ranks}")
    set(command ${mpiexec} ${wanted_ranks} ${mpiexec_flags} ${command})
    # A rank spends about half of its test on starting and on waiting for others.
    math(EXPR processors "(${wanted_ranks} + 1) / 2")
  endif()
  set(quoted "")
  foreach(word IN LISTS command)
    string(APPEND quoted " [==[${word}]==]")
  endforeach()
  # ctest's own limit is the second line: the watchdog inside the program names the test first.
  math(EXPR timeout "${deadline} + 20")
  set(variables "RONDE_TEST_DEADLINE_S=${deadline}" ${environment})
  string(APPEND content "add_test([==[${name}]==]${quoted} [==[${spec}]==])\n"
    "set_tests_properties([==[${name}]==] PROPERTIES TIMEOUT ${timeout} PROCESSORS ${processors}"
    " LABELS [==[${labels}]==] ENVIRONMENT [==[${variables}]==]"
    " FIXTURES_REQUIRED [==[${fixtures}]==]${skipping})\n")
  set(content "${content}" PARENT_SCOPE)
endfunction()

# Not by an exit code, which Catch2 makes of the number of failures.
set(skipping "")
if("gpu" IN_LIST labels)
  set(skipping " SKIP_REGULAR_EXPRESSION [==[skipped: no GPU]==]")
endif()

set(content "")
foreach(line IN LISTS lines)
  if(NOT line MATCHES "^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)$")
    message(FATAL_ERROR "${program} --ronde-list: this line is not understood: ${line}")
  endif()
  set(name "${prefix}.${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
  set(spec "${CMAKE_MATCH_3}")
  set(tags "${CMAKE_MATCH_4}")
  restore(name)
  restore(spec)
  string(REGEX MATCHALL "${open}n[0-9]+${close}" restrictions "${tags}")
  if(NOT ranks)
    add_case("${name}" "${spec}" "")
  endif()
  foreach(count IN LISTS ranks)
    if(NOT restrictions OR "${open}n${count}${close}" IN_LIST restrictions)
      add_case("${name}" "${spec}" ${count})
    endif()
  endforeach()
endforeach()
file(WRITE "${cases}" "${content}")
