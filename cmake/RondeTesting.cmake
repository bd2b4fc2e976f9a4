# SPDX-License-Identifier: Apache-2.0
# The testing functions of RondeHelpers.cmake; their signatures are described there.

function(ronde_add_test_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  ronde_add_executable(${target} SOURCES ${arg_SOURCES} LINK ronde_test_main ${arg_LINK})
endfunction()

# The cases are listed by the program itself after it is linked, so a new case needs no configure.
function(ronde_add_catch_test prefix target)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TIMEOUT;PROCESSORS" "LABELS;RANKS;ENVIRONMENT;LAUNCHER;FIXTURES")
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(arg_RANKS AND NOT RONDE_HAVE_MPI)
    message(FATAL_ERROR "ronde_add_catch_test(${prefix} ${target}): RANKS needs MPI.")
  endif()
  set(cases "${CMAKE_CURRENT_BINARY_DIR}/${target}.${prefix}.cases.cmake")
  set(parameters "${CMAKE_CURRENT_BINARY_DIR}/${target}.${prefix}.parameters.cmake")
  file(GENERATE OUTPUT "${parameters}" CONTENT "\
set(program [==[$<TARGET_FILE:${target}>]==])
set(prefix [==[${prefix}]==])
set(labels [==[${arg_LABELS}]==])
set(deadline ${arg_TIMEOUT})
set(processors ${arg_PROCESSORS})
set(ranks [==[${arg_RANKS}]==])
set(environment [==[${arg_ENVIRONMENT}]==])
set(launcher [==[${arg_LAUNCHER}]==])
set(fixtures [==[${arg_FIXTURES}]==])
set(mpiexec [==[${MPIEXEC_EXECUTABLE};${MPIEXEC_NUMPROC_FLAG}]==])
set(mpiexec_flags [==[${MPIEXEC_PREFLAGS}]==])
set(cases [==[${cases}]==])
")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${parameters}")
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND "${CMAKE_COMMAND}" -P "${RONDE_CMAKE_DIR}/discover_cases.cmake" "${parameters}"
    BYPRODUCTS "${cases}"
    VERBATIM)
  set(include "${CMAKE_CURRENT_BINARY_DIR}/${target}.${prefix}.ctest.cmake")
  file(WRITE "${include}" "\
if(EXISTS [==[${cases}]==])
  include([==[${cases}]==])
else()
  add_test([==[${prefix}.${target}_is_not_built]==] ${target}_is_not_built)
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

# Gives <copy> the options of <origin>..., apart from the sources, and those of the sanitizer.
function(ronde_set_sanitized_properties copy sanitizer)
  ronde_set_common_properties(${copy})
  foreach(origin IN LISTS ARGN)
    target_include_directories(${copy} PRIVATE $<TARGET_PROPERTY:${origin},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${copy} PRIVATE $<TARGET_PROPERTY:${origin},COMPILE_DEFINITIONS>)
  endforeach()
  target_compile_options(${copy} PRIVATE ${RONDE_SANITIZER_FLAGS_${sanitizer}} -O1)
  target_link_options(${copy} PRIVATE ${RONDE_SANITIZER_FLAGS_${sanitizer}})
  target_link_libraries(${copy} PRIVATE spdlog::spdlog Catch2::Catch2 Threads::Threads)
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
    get_source_file_property(options "${source}" TARGET_DIRECTORY ${origin} COMPILE_OPTIONS)
    if(options)
      set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
    get_source_file_property(depends "${source}" TARGET_DIRECTORY ${origin} OBJECT_DEPENDS)
    if(depends)
      set_source_files_properties("${source}" PROPERTIES OBJECT_DEPENDS "${depends}")
    endif()
  endforeach()
  set(${result} "${sources}" PARENT_SCOPE)
endfunction()

# <test program>_<suffix>, of the program's sources but those left out. A library is compiled once for
# all the programs that use it.
function(ronde_add_sanitized_copy test_program sanitizer suffix)
  cmake_parse_arguments(PARSE_ARGV 3 arg "OWN_MAIN" "" "LIBRARIES;LEAVE_OUT")
  if(NOT arg_OWN_MAIN)
    list(APPEND arg_LIBRARIES ronde_test_main)
  endif()
  foreach(library IN LISTS arg_LIBRARIES)
    if(NOT TARGET ${library}_${suffix})
      ronde_get_sources(sources ${library})
      add_library(${library}_${suffix} OBJECT ${sources})
      ronde_set_sanitized_properties(${library}_${suffix} ${sanitizer} ${library})
    endif()
  endforeach()
  ronde_get_sources(sources ${test_program})
  list(REMOVE_ITEM sources ${arg_LEAVE_OUT})
  add_executable(${test_program}_${suffix} ${sources})
  ronde_set_sanitized_properties(${test_program}_${suffix} ${sanitizer}
    ${test_program} ${arg_LIBRARIES})
  foreach(library IN LISTS arg_LIBRARIES)
    target_link_libraries(${test_program}_${suffix} PRIVATE ${library}_${suffix})
  endforeach()
endfunction()

# A source that mentions none of these shares nothing between threads. The queue and the runtime have
# locks, but only who shares them needs ThreadSanitizer.
function(ronde_require_single_threaded)
  foreach(source IN LISTS ARGN)
    file(STRINGS "${source}" threads
      REGEX "<(thread|future|atomic|mutex)>|run_(ranks|group)|support/ranks\\.h|group\\.h|runtime\\.h")
    if(threads)
      message(FATAL_ERROR "${source} is listed as SINGLE_THREADED, but has: ${threads}")
    endif()
  endforeach()
endfunction()

function(ronde_add_sanitized_tests test_program)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OWN_MAIN" "PREFIX;TIMEOUT" "LIBRARIES;SINGLE_THREADED")
  if(NOT RONDE_SANITIZED_TESTS)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 180)
  endif()
  list(TRANSFORM arg_SINGLE_THREADED PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  ronde_require_single_threaded(${arg_SINGLE_THREADED})
  set(own_main "")
  if(arg_OWN_MAIN)
    set(own_main OWN_MAIN)
  endif()
  ronde_find_fixed_address_launcher(fixed_addresses)
  set(suppressions "${PROJECT_SOURCE_DIR}/tests/support/thread_sanitizer.supp")
  ronde_add_sanitized_copy(${test_program} thread tsan
    LIBRARIES ${arg_LIBRARIES} LEAVE_OUT ${arg_SINGLE_THREADED} ${own_main})
  ronde_add_catch_test(${arg_PREFIX}.tsan ${test_program}_tsan LABELS unit tsan
    TIMEOUT ${arg_TIMEOUT} LAUNCHER ${fixed_addresses}
    ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1 second_deadlock_stack=1 suppressions=${suppressions}")
  ronde_add_sanitized_copy(${test_program} address asan LIBRARIES ${arg_LIBRARIES} ${own_main})
  ronde_add_catch_test(${arg_PREFIX}.asan ${test_program}_asan LABELS unit asan
    TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "ASAN_OPTIONS=detect_stack_use_after_return=1" "UBSAN_OPTIONS=print_stacktrace=1")
endfunction()
