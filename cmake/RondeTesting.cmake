# SPDX-License-Identifier: Apache-2.0
# The testing functions of RondeHelpers.cmake; their signatures are described there.

# Tests are compiled once and run for seconds: with little optimisation, and without parsing Catch2 and the
# standard library in each of their sources.
set(RONDE_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
set(RONDE_TEST_HEADERS <catch2/catch.hpp> <algorithm> <atomic> <chrono> <functional> <memory> <mutex>
  <sstream> <string> <thread> <vector>)

function(ronde_add_test_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  ronde_add_executable(${target} SOURCES ${arg_SOURCES} LINK ronde_test_main ${arg_LINK})
  target_compile_options(${target} PRIVATE ${RONDE_TEST_OPTIONS})
  target_precompile_headers(${target} REUSE_FROM ronde_test_pch)
endfunction()

# ronde_define_paths(<test program> <NAME=path>...): <NAME> finds the path from the program's own by
# tests/support/processes/beside.h, so that the objects of all copies of the tree are the same to ccache.
function(ronde_define_paths target)
  file(REAL_PATH "${PROJECT_BINARY_DIR}" real_folder)
  foreach(definition IN LISTS ARGN)
    string(REGEX REPLACE "^[^=]*=" "" path "${definition}")
    string(REGEX REPLACE "=.*" "" name "${definition}")
    if(NOT real_folder STREQUAL PROJECT_BINARY_DIR)  # ".." would lead elsewhere
      target_compile_definitions(${target} PRIVATE "${name}=\"${path}\"")
      continue()
    endif()
    set(path "$<PATH:RELATIVE_PATH,${path},$<TARGET_FILE_DIR:${target}>>")
    target_compile_definitions(${target} PRIVATE "${name}=ronde::test::beside_program(\"${path}\")")
  endforeach()
endfunction()

# Makes the target <tier>_tests build <target>: `everyday_tests` builds what scripts/test.sh runs,
# `sanitized_tests` the copies for sanitizers. The target `all` builds everything but the latter.
function(ronde_set_tier target tier)
  if(NOT TARGET ${tier}_tests)
    add_custom_target(${tier}_tests)
  endif()
  add_dependencies(${tier}_tests ${target})
endfunction()

# ronde_leave_out([EVERYDAY] <text>): these tests cannot be built here, and why. scripts/test.sh compares the
# texts, and those of tests that are skipped when they run, with tests/allowed_omissions.txt.
function(ronde_leave_out)
  cmake_parse_arguments(PARSE_ARGV 0 arg "EVERYDAY" "" "")
  message(STATUS "ronde: tests left out: ${arg_UNPARSED_ARGUMENTS}")
  set_property(GLOBAL APPEND_STRING PROPERTY RONDE_LEFT_OUT_all "left out: ${arg_UNPARSED_ARGUMENTS}\n")
  if(arg_EVERYDAY)
    set_property(GLOBAL APPEND_STRING PROPERTY RONDE_LEFT_OUT_everyday "left out: ${arg_UNPARSED_ARGUMENTS}\n")
  endif()
endfunction()

function(ronde_write_omissions)
  foreach(tier everyday all)
    get_property(text GLOBAL PROPERTY RONDE_LEFT_OUT_${tier})
    file(WRITE "${PROJECT_BINARY_DIR}/left_out_${tier}.txt" "${text}")
  endforeach()
endfunction()

# The cases are listed by the program itself after it is linked, so a new case needs no configure.
function(ronde_add_catch_test prefix target)
  cmake_parse_arguments(PARSE_ARGV 2 arg "EVERYDAY" "TIMEOUT;PROCESSORS"
    "SUITES;LABELS;RANKS;ENVIRONMENT;LAUNCHER")
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(arg_RANKS AND NOT RONDE_HAVE_MPI)
    message(FATAL_ERROR "ronde_add_catch_test(${prefix} ${target}): RANKS needs MPI.")
  endif()
  if(arg_EVERYDAY)
    list(APPEND arg_LABELS everyday)
    ronde_set_tier(${target} everyday)
  endif()
  get_property(calls TARGET ${target} PROPERTY RONDE_RUNS)
  list(LENGTH calls index)
  # Which suites run on how many ranks by all calls: no case may be left to none.
  if(arg_SUITES)
    set(runs ${arg_SUITES})
  else()
    set(runs *)
  endif()
  set(counts ${arg_RANKS})
  if(NOT counts)
    set(counts 0)
  endif()
  foreach(count IN LISTS counts)
    list(TRANSFORM runs APPEND "@${count}" OUTPUT_VARIABLE runs_on)
    set_property(TARGET ${target} APPEND PROPERTY RONDE_RUNS ${runs_on})
  endforeach()
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${target}.${index}")
  set(parameters "${output}.parameters.cmake")
  file(GENERATE OUTPUT "${parameters}" CONTENT "\
set(program [==[$<TARGET_FILE:${target}>]==])
set(prefix [==[${prefix}]==])
set(suites [==[${arg_SUITES}]==])
set(runs [==[$<TARGET_PROPERTY:${target},RONDE_RUNS>]==])
set(labels [==[${arg_LABELS}]==])
set(deadline ${arg_TIMEOUT})
set(processors ${arg_PROCESSORS})
set(ranks [==[${arg_RANKS}]==])
set(environment [==[${arg_ENVIRONMENT}]==])
set(launcher [==[${arg_LAUNCHER}]==])
set(mpiexec [==[${MPIEXEC_EXECUTABLE};${MPIEXEC_NUMPROC_FLAG}]==])
set(mpiexec_flags [==[${MPIEXEC_PREFLAGS}]==])
set(output [==[${output}]==])
")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${parameters}")
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND "${CMAKE_COMMAND}" -P "${RONDE_CMAKE_DIR}/discover_cases.cmake" "${parameters}"
    BYPRODUCTS "${output}.suites.cmake" "${output}.cases.cmake"
    VERBATIM)
  # Read by ctest when it runs, which therefore can choose the grain.
  set(include "${output}.ctest.cmake")
  file(WRITE "${include}" "\
if(NOT EXISTS [==[${output}.suites.cmake]==])
  add_test([==[${prefix}.${target}_is_not_built]==] ${target}_is_not_built)
  set_tests_properties([==[${prefix}.${target}_is_not_built]==] PROPERTIES LABELS [==[${arg_LABELS}]==])
elseif(\"\$ENV{RONDE_TEST_GRAIN}\" STREQUAL case)
  include([==[${output}.cases.cmake]==])
else()
  include([==[${output}.suites.cmake]==])
endif()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include}")
endfunction()

# ThreadSanitizer needs its fixed address ranges free: address randomisation is turned off for it
# where that is allowed (containers may forbid it, and then mostly have no need for it).
function(ronde_find_fixed_address_launcher result)
  find_program(RONDE_SETARCH setarch)
  mark_as_advanced(RONDE_SETARCH)
  set(launcher "")
  if(RONDE_SETARCH)
    execute_process(COMMAND "${RONDE_SETARCH}" -R true RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status EQUAL 0)
      set(launcher "${RONDE_SETARCH}" -R)
    endif()
  endif()
  set(${result} "${launcher}" PARENT_SCOPE)
endfunction()

# Gives <copy> the options of <origin>..., apart from the sources, and <flags> of the sanitizer.
function(ronde_set_sanitized_properties copy sanitizer flags)
  ronde_set_common_properties(${copy})
  foreach(origin IN LISTS ARGN)
    target_include_directories(${copy} PRIVATE $<TARGET_PROPERTY:${origin},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${copy} PRIVATE $<TARGET_PROPERTY:${origin},COMPILE_DEFINITIONS>)
  endforeach()
  target_compile_options(${copy} PRIVATE ${${flags}_${sanitizer}} -O1)
  target_link_options(${copy} PRIVATE ${RONDE_SANITIZER_FLAGS_${sanitizer}})
  target_link_libraries(${copy} PRIVATE
    Sodium::sodium Catch2::Catch2 Threads::Threads)
endfunction()

# The sources of <origin> with full paths. A source's own options hold in its folder only: they are
# brought along.
function(ronde_get_sources result origin)
  get_target_property(origin_sources ${origin} SOURCES)
  get_target_property(origin_dir ${origin} SOURCE_DIR)
  set(sources "")
  foreach(source IN LISTS origin_sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${origin_dir}")
    list(APPEND sources "${source}")
    foreach(property COMPILE_DEFINITIONS COMPILE_OPTIONS OBJECT_DEPENDS)
      get_source_file_property(value "${source}" TARGET_DIRECTORY ${origin} ${property})
      if(value)
        set_source_files_properties("${source}" PROPERTIES ${property} "${value}")
      endif()
    endforeach()
  endforeach()
  set(${result} "${sources}" PARENT_SCOPE)
endfunction()

# <test program>_<suffix>, of the program's sources but those left out. A library is compiled once for
# all the programs that use it.
function(ronde_add_sanitized_copy test_program sanitizer suffix)
  cmake_parse_arguments(PARSE_ARGV 3 arg "OWN_MAIN" "" "LIBRARIES;LEAVE_OUT")
  if(NOT arg_OWN_MAIN)
    list(APPEND arg_LIBRARIES ronde_test_main)
    if(NOT TARGET ronde_test_pch_${suffix})
      ronde_get_sources(sources ronde_test_pch)
      add_library(ronde_test_pch_${suffix} OBJECT EXCLUDE_FROM_ALL ${sources})
      ronde_set_sanitized_properties(ronde_test_pch_${suffix} ${sanitizer} RONDE_TEST_SANITIZER_FLAGS
        ronde_test_main)
      target_precompile_headers(ronde_test_pch_${suffix} PRIVATE ${RONDE_TEST_HEADERS})
    endif()
  endif()
  foreach(library IN LISTS arg_LIBRARIES)
    if(NOT TARGET ${library}_${suffix})
      ronde_get_sources(sources ${library})
      add_library(${library}_${suffix} OBJECT EXCLUDE_FROM_ALL ${sources})
      ronde_set_sanitized_properties(${library}_${suffix} ${sanitizer} RONDE_SANITIZER_FLAGS ${library})
      get_target_property(launcher ${library} CXX_COMPILER_LAUNCHER)
      if(NOT launcher)
        set_target_properties(${library}_${suffix} PROPERTIES CXX_COMPILER_LAUNCHER "")
      endif()
    endif()
  endforeach()
  ronde_get_sources(sources ${test_program})
  list(REMOVE_ITEM sources ${arg_LEAVE_OUT})
  add_executable(${test_program}_${suffix} EXCLUDE_FROM_ALL ${sources})
  if(NOT arg_OWN_MAIN)
    target_precompile_headers(${test_program}_${suffix} REUSE_FROM ronde_test_pch_${suffix})
  endif()
  ronde_set_tier(${test_program}_${suffix} sanitized)
  ronde_set_sanitized_properties(${test_program}_${suffix} ${sanitizer} RONDE_TEST_SANITIZER_FLAGS
    ${test_program} ${arg_LIBRARIES})
  foreach(library IN LISTS arg_LIBRARIES)
    target_link_libraries(${test_program}_${suffix} PRIVATE ${library}_${suffix})
  endforeach()
endfunction()

function(ronde_add_sanitized_tests test_program)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OWN_MAIN" "PREFIX;TIMEOUT;PROCESSORS;TSAN_OPTIONS"
    "LIBRARIES;WITHOUT_TSAN")
  if(RONDE_SANITIZE)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 180)
  endif()
  list(TRANSFORM arg_WITHOUT_TSAN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set(own_main "")
  if(arg_OWN_MAIN)
    set(own_main OWN_MAIN)
  endif()
  ronde_find_fixed_address_launcher(fixed_addresses)
  set(suppressions "${PROJECT_SOURCE_DIR}/tests/support/harness/thread_sanitizer.supp")
  ronde_add_sanitized_copy(${test_program} thread tsan
    LIBRARIES ${arg_LIBRARIES} LEAVE_OUT ${arg_WITHOUT_TSAN} ${own_main})
  ronde_add_catch_test(${arg_PREFIX}.tsan ${test_program}_tsan LABELS unit sanitizer tsan
    TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS} LAUNCHER ${fixed_addresses}
    ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1 second_deadlock_stack=1 suppressions=${suppressions} ${arg_TSAN_OPTIONS}")
  ronde_add_sanitized_copy(${test_program} address asan LIBRARIES ${arg_LIBRARIES} ${own_main})
  ronde_add_catch_test(${arg_PREFIX}.asan ${test_program}_asan LABELS unit sanitizer asan
    TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS}
    ENVIRONMENT "ASAN_OPTIONS=detect_stack_use_after_return=1" "UBSAN_OPTIONS=print_stacktrace=1")
endfunction()
