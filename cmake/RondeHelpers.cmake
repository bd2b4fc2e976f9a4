# SPDX-License-Identifier: Apache-2.0
# The functions that the folders' CMakeLists.txt are written with.
#
#   ronde_add_library(<target> EXPORT <name> [SHARED] SOURCES <file>... [INCLUDE <dir>]
#                     [PUBLIC <lib>...] [PRIVATE <lib>...])
#       A library that is installed and exported as ronde::<name>; INCLUDE is the folder of its public
#       headers. PRIVATE libraries never reach a consumer of the shared build. SHARED: in a static
#       build, too. A shared library exports what is called ronde, and nothing else. Under RONDE_UNITY
#       sources are compiled several at once, but those with options of their own.
#   ronde_add_object_library(<target> SOURCES <file>... [INCLUDE <dir>] [PUBLIC <lib>...] [PRIVATE <lib>...])
#       Objects that are linked into a library (ronde_absorb) or a test program; not installed.
#   ronde_absorb(<target> <object library>...)
#       Links object libraries, or headers, into a library.
#   ronde_add_executable(<target> SOURCES <file>... [LINK <lib>...] [OUTPUT_NAME <name>] [INSTALL])
#   ronde_use_torch_pch(<target>)
#       Compiles with the one shared precompiled <torch/torch.h>, a program of several sources under
#       RONDE_UNITY as libraries: GCC 12 spends six seconds a file on templates that the header leaves pending.
#   ronde_add_optional_subdirectory(<dir> IF <variable or target>...)
#       Enters <dir> if all variables are true and all targets exist.
#   ronde_add_test_program(<target> SOURCES <file>... [LINK <lib>...])
#       A Catch2 program with Ronde's main (watchdog, listing): see tests/support/.
#   ronde_add_catch_test(<prefix> <target> [EVERYDAY] [SUITES <suite>...] [LABELS <label>...] [TIMEOUT <s>]
#                        [RANKS <n>...] [ENVIRONMENT <NAME=value>...] [LAUNCHER <command>...] [PROCESSORS <n>])
#       Every source file of <target> becomes the ctest test <prefix>.<suite>, one process for all its
#       cases, where <suite> is the source's stem without "_test"; with RANKS, one test "...@n<k>" for
#       each k under mpiexec. Under RONDE_TEST_GRAIN=case ctest sees every case by itself, as
#       <prefix>.<suite>.<case>.
#       EVERYDAY: scripts/test.sh runs it; all others are for its option --all.
#       SUITES: these files only; further calls name the others.
#       TIMEOUT is that of a case. PROCESSORS says how many processors a test keeps busy (1); it is half
#       of <k> with RANKS.
#       A case with tags among [n1] [n2] [n3] [n4] runs with these numbers of ranks only; one with the
#       tag [own] is a test, and a process, of its own.
#   ronde_add_sanitized_tests(<test program> PREFIX <prefix> LIBRARIES <target>... [TIMEOUT <s>]
#                             [PROCESSORS <n>] [WITHOUT_TSAN <file>...] [TSAN_OPTIONS <text>] [OWN_MAIN])
#       The same program and libraries once more under TSan and ASan+UBSan: <prefix>.tsan.*, .asan.*
#       The target sanitized_tests builds them. OWN_MAIN: the program is not of ronde_add_test_program.
#       WITHOUT_TSAN: sources for ASan alone, where threads do not interact, or as they do in another suite.

set(RONDE_CMAKE_DIR "${CMAKE_CURRENT_LIST_DIR}")

# Warnings are ours alone: linked privately to our targets, never exported.
add_library(ronde_warnings INTERFACE)
target_compile_options(ronde_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${RONDE_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees an overlap in every "text" + std::string at -O2 (GCC bug 105651).
  target_compile_options(ronde_warnings INTERFACE -Wno-restrict)
endif()

set(RONDE_SANITIZER_FLAGS_thread -fsanitize=thread -fno-omit-frame-pointer -g1)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC's ThreadSanitizer does not see fences, and says so of each. Ours order no plain data.
  list(APPEND RONDE_SANITIZER_FLAGS_thread -Wno-tsan)
endif()
set(RONDE_SANITIZER_FLAGS_address
  -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees uninitialised members in every std::regex under ASan (GCC bug 105562).
  list(APPEND RONDE_SANITIZER_FLAGS_address -Wno-maybe-uninitialized)
endif()

# What tests do is not checked for undefined behaviour, which takes longer to compile than all else.
set(RONDE_TEST_SANITIZER_FLAGS_thread ${RONDE_SANITIZER_FLAGS_thread})
set(RONDE_TEST_SANITIZER_FLAGS_address ${RONDE_SANITIZER_FLAGS_address})
list(TRANSFORM RONDE_TEST_SANITIZER_FLAGS_address REPLACE "address,undefined" "address")
list(REMOVE_ITEM RONDE_TEST_SANITIZER_FLAGS_address -fno-sanitize-recover=all)

function(ronde_set_common_properties target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ronde_warnings>)
  if(RONDE_SANITIZE)
    target_compile_options(${target} PRIVATE ${RONDE_SANITIZER_FLAGS_${RONDE_SANITIZE}})
    target_link_options(${target} PRIVATE ${RONDE_SANITIZER_FLAGS_${RONDE_SANITIZE}})
  endif()
endfunction()

# A shared library hides what it links privately; a static one passes the burden on, so the package
# config (ronde-config.cmake.in) has to find those libraries again.
function(ronde_link_private target)
  foreach(library IN LISTS ARGN)
    if(BUILD_SHARED_LIBS)
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${library}>)
    else()
      target_link_libraries(${target} PRIVATE ${library})
    endif()
  endforeach()
endfunction()

function(ronde_add_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SHARED" "EXPORT;INCLUDE" "SOURCES;PUBLIC;PRIVATE")
  list(TRANSFORM arg_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set(kind "")
  if(arg_SHARED)
    set(kind SHARED)
  endif()
  add_library(${target} ${kind} ${arg_SOURCES})
  add_library(ronde::${arg_EXPORT} ALIAS ${target})
  ronde_set_common_properties(${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${arg_EXPORT}
    DEFINE_SYMBOL ""  # so that the objects of a static and of a shared library are the same
    POSITION_INDEPENDENT_CODE ON
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  if(arg_INCLUDE)
    target_include_directories(${target} PUBLIC
      "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/${arg_INCLUDE}>"
      "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  endif()
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC})
  ronde_link_private(${target} ${arg_PRIVATE})
  ronde_unite_later(${target})
  if(BUILD_SHARED_LIBS AND NOT arg_SHARED)
    set_target_properties(${target} PROPERTIES LINK_DEPENDS "${RONDE_CMAKE_DIR}/exports.map")
    target_link_options(${target} PRIVATE "LINKER:--version-script=${RONDE_CMAKE_DIR}/exports.map")
  endif()
  if(RONDE_INSTALL)
    # A build may hold some of the libraries only (quickstart.sh): the install script of a folder ends here
    # where its library was not built. Each is exported apart, so that the package has those that are there.
    install(CODE "if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
  message(STATUS \"Not built, so not installed: ${target}\")
  return()
endif()")
    install(TARGETS ${target} EXPORT ronde-${arg_EXPORT}-targets)
    install(EXPORT ronde-${arg_EXPORT}-targets NAMESPACE ronde:: DESTINATION "${RONDE_PACKAGE_DIR}")
    if(arg_INCLUDE)
      install(DIRECTORY "${arg_INCLUDE}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")
    endif()
  endif()
endfunction()

function(ronde_add_object_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "INCLUDE" "SOURCES;PUBLIC;PRIVATE")
  list(TRANSFORM arg_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  add_library(${target} OBJECT ${arg_SOURCES})
  ronde_set_common_properties(${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(arg_INCLUDE)
    target_include_directories(${target} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/${arg_INCLUDE}")
  endif()
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  ronde_unite_later(${target})
endfunction()

function(ronde_absorb target)
  foreach(library IN LISTS ARGN)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${library}>)
  endforeach()
endfunction()

function(ronde_add_executable target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL" "OUTPUT_NAME" "SOURCES;LINK")
  list(TRANSFORM arg_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  add_executable(${target} ${arg_SOURCES})
  ronde_set_common_properties(${target})
  target_link_libraries(${target} PRIVATE ${arg_LINK})
  if(arg_OUTPUT_NAME)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_OUTPUT_NAME})
  endif()
  if(arg_INSTALL AND RONDE_INSTALL)
    install(TARGETS ${target} OPTIONAL)
  endif()
endfunction()

function(ronde_use_torch_pch target)
  if(NOT TARGET ronde_torch_pch)
    # A precompiled header holds for one set of code-generation flags: -fPIC for all, programs too.
    file(WRITE "${PROJECT_BINARY_DIR}/torch_pch/empty.cc" "")
    add_library(ronde_torch_pch OBJECT "${PROJECT_BINARY_DIR}/torch_pch/empty.cc")
    ronde_set_common_properties(ronde_torch_pch)
    set_target_properties(ronde_torch_pch PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(ronde_torch_pch PRIVATE LibTorch::torch Threads::Threads)
    target_precompile_headers(ronde_torch_pch PRIVATE <torch/torch.h>)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    target_compile_options(${target} PRIVATE -fPIC)
  else()
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  # The property, as a test program has another one already.
  set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ronde_torch_pch)
  if(type STREQUAL EXECUTABLE)
    ronde_unite_later(${target})
  endif()
endfunction()

# Once the folder has said all about its sources.
function(ronde_unite_later target)
  if(RONDE_UNITY)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL ronde_unite_sources ${target})")
  endif()
endfunction()

# Puts twelve sources each into one that includes them. CMake's UNITY_BUILD does so by full paths, with which
# ccache finds nothing that another folder compiled. It leaves out what has SKIP_UNITY_BUILD_INCLUSION, too.
function(ronde_unite_sources target)
  get_target_property(sources ${target} SOURCES)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_united")
  file(REAL_PATH "${CMAKE_CURRENT_BINARY_DIR}" real_folder)
  set(united "")
  set(count 0)
  set(first_line "")
  get_target_property(uses_torch ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT uses_torch)
    # GCC says of each coroutine in an included file that its frame has types of that file.
    set(first_line "#pragma GCC diagnostic ignored \"-Wsubobject-linkage\"\n")
  endif()
  foreach(source IN LISTS sources)
    set(alone FALSE)
    foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_DEFINITIONS COMPILE_OPTIONS)
      get_source_file_property(value "${source}" ${property})
      if(value)
        set(alone TRUE)
      endif()
    endforeach()
    if(alone OR NOT source MATCHES "\\.cc$")
      list(APPEND united "${source}")
      continue()
    endif()
    math(EXPR number "${count} / 12")
    math(EXPR count "${count} + 1")
    list(APPEND united "${folder}/${number}.cc")
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    if(real_folder STREQUAL CMAKE_CURRENT_BINARY_DIR)  # or ".." would lead elsewhere
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${folder}")
    endif()
    string(APPEND text_${number} "#include \"${source}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES united)
  foreach(source IN LISTS united)
    if(source MATCHES "_united/([0-9]+)\\.cc$")
      file(CONFIGURE OUTPUT "${source}" CONTENT "${first_line}${text_${CMAKE_MATCH_1}}" @ONLY)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${united}")
endfunction()

function(ronde_add_optional_subdirectory dir)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "IF")
  foreach(condition IN LISTS arg_IF)
    if(NOT ${condition} AND NOT TARGET ${condition})
      return()
    endif()
  endforeach()
  add_subdirectory(${dir})
endfunction()

include(RondeTesting)
