# SPDX-License-Identifier: Apache-2.0
#[[
Finds LibTorch under exactly one root, and takes every header and library from that root alone.

find_package(Torch) is not used: it asks for a CUDA toolkit where LibTorch was built with CUDA, and it
searches c10 on the system's paths first, so a machine that has Debian's LibTorch as well gets two.

The root (the folder that holds include/torch and lib/libtorch_cpu.so) is the first of
  1. LibTorch_ROOT                                 a cache variable or the environment
  2. Torch_DIR                                     <root>/share/cmake/Torch
  3. CMAKE_PREFIX_PATH                             a root itself, or a prefix that holds one
  4. Python3_EXECUTABLE                            the interpreter's `torch` package
  5. RONDE_VENV                                    a virtual environment's `torch` package; default
                                                   ${XDG_CACHE_HOME:-~/.cache}/ronde/venv-torch-2.11.0
A LibTorch that is named by 1, 2 or 4 but cannot be used is an error; so is one in 3, unless its prefix is
the system's, where an unusable one (Debian's 1.13) is passed over.

Defines LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT_DIR, LibTorch_LIBRARY_DIR, LibTorch_CUDA_VERSION
(empty for a CPU build) and the targets LibTorch::c10 and LibTorch::torch (torch_cpu and c10). libtorch_cpu
finds NVIDIA's libraries through its own run path, so no CUDA toolkit is needed.
]]
set(_LibTorch_minimum 2.7)

# A LibTorch package inside a Python environment, found without importing it (that takes seconds). pip hides the
# environment from what it builds in isolation by PYTHONPATH, which Python ignores under -E.
function(_libtorch_python_root executable result)
  foreach(options "-c" "-E;-c")
    execute_process(
      COMMAND "${executable}" ${options}
        "import importlib.util as u, sys; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '|' + ', '.join(p for p in sys.path if p))"
      OUTPUT_VARIABLE root ERROR_VARIABLE error RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "Python3_EXECUTABLE=${executable} could not be asked for its torch package: "
        "${status} ${error}")
    endif()
    if(NOT root MATCHES "^\\|(.*)")
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "LibTorch was not found: ${executable} has no torch package in ${CMAKE_MATCH_1}. Install torch "
    "there (pip install torch), or set LibTorch_ROOT in the environment to the folder of a torch package. Where a tool "
    "other than pip builds in an environment of its own, turn that off (uv: --no-build-isolation, build: --no-isolation).")
endfunction()

function(_libtorch_is_root dir result)
  if(EXISTS "${dir}/include/torch/csrc/api/include/torch/torch.h" AND EXISTS "${dir}/lib/libtorch_cpu.so")
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Reads the version from the headers (2.9 moved the macros), else from the wheel's build-version file.
function(_libtorch_read_version root result)
  set(version "")
  foreach(header torch/headeronly/version.h torch/version.h
      torch/csrc/api/include/torch/version.h)
    if(version STREQUAL "" AND EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      if(lines MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
        set(version "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
      endif()
    endif()
  endforeach()
  if(version STREQUAL "" AND EXISTS "${root}/build-version")
    file(READ "${root}/build-version" text)
    if(text MATCHES "^([0-9]+\\.[0-9]+\\.[0-9]+)")
      set(version "${CMAKE_MATCH_1}")
    endif()
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# The C++11 ABI is read off the symbols: in the old one, std::string mangles to "Ss".
function(_libtorch_check root version result)
  if(version STREQUAL "")
    set(problem "has no version that could be read")
  elseif(version VERSION_LESS _LibTorch_minimum)
    set(problem "is version ${version}; Ronde needs ${_LibTorch_minimum} or newer")
  elseif(NOT EXISTS "${root}/lib/libc10.so")
    set(problem "has no lib/libc10.so")
  else()
    file(STRINGS "${root}/lib/libc10.so" new_abi REGEX "_ZN3c105ErrorC.*cxx11" LIMIT_COUNT 1)
    if(new_abi)
      set(problem "")
    else()
      set(problem "was built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), which Ronde refuses: \
strings could not be passed to it. Use a build with the C++11 ABI (PyPI's torch since 2.7, or the \
libtorch-cxx11-abi archive)")
    endif()
  endif()
  set(${result} "${problem}" PARENT_SCOPE)
endfunction()

function(_libtorch_cuda_version root result)
  set(version "")
  if(EXISTS "${root}/lib/libtorch_cuda.so")
    set(version "unknown version")
    if(EXISTS "${root}/version.py")
      file(STRINGS "${root}/version.py" line REGEX "^cuda.*=" LIMIT_COUNT 1)
      if(line MATCHES "'([0-9.]+)'")
        set(version "${CMAKE_MATCH_1}")
      endif()
    endif()
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# Candidates in order, as "<how it was named>|<folder>|<STRICT or LENIENT>".
function(_libtorch_candidates result)
  set(candidates "")
  if(LibTorch_ROOT)
    list(APPEND candidates "LibTorch_ROOT|${LibTorch_ROOT}|STRICT")
  elseif(DEFINED ENV{LibTorch_ROOT})
    list(APPEND candidates "LibTorch_ROOT|$ENV{LibTorch_ROOT}|STRICT")
  endif()
  if(Torch_DIR)
    # <root>/share/cmake/Torch, or Debian's /usr/lib/<architecture>/cmake/Torch, whose version is refused.
    get_filename_component(root "${Torch_DIR}/../../.." ABSOLUTE)
    if(EXISTS "${root}/../include/torch")
      get_filename_component(root "${root}/.." ABSOLUTE)
    endif()
    list(APPEND candidates "Torch_DIR|${root}|STRICT")
  endif()
  string(REPLACE ":" ";" environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH environment_prefixes)
    set(strictness STRICT)
    if(prefix MATCHES "^/(usr(/local)?)?/*$")
      set(strictness LENIENT)
    endif()
    file(GLOB inside "${prefix}/lib/python3*/site-packages/torch")
    foreach(dir "${prefix}" "${prefix}/libtorch" ${inside})
      _libtorch_is_root("${dir}" is_root)
      if(is_root)
        list(APPEND candidates "CMAKE_PREFIX_PATH|${dir}|${strictness}")
      endif()
    endforeach()
    if(prefix MATCHES "/share/cmake(/Torch)?/*$")
      string(REGEX REPLACE "/share/cmake(/Torch)?/*$" "" root "${prefix}")
      list(APPEND candidates "CMAKE_PREFIX_PATH|${root}|${strictness}")
    endif()
  endforeach()
  if(Python3_EXECUTABLE AND NOT candidates MATCHES "STRICT")
    _libtorch_python_root("${Python3_EXECUTABLE}" root)
    list(APPEND candidates "Python3_EXECUTABLE|${root}|STRICT")
  endif()
  file(GLOB inside "${RONDE_VENV}/lib/python3*/site-packages/torch")
  foreach(dir IN LISTS inside)
    list(APPEND candidates "RONDE_VENV|${dir}|LENIENT")
  endforeach()
  set(${result} "${candidates}" PARENT_SCOPE)
endfunction()

function(_libtorch_choose)
  _libtorch_candidates(candidates)
  foreach(candidate IN LISTS candidates)
    string(REGEX MATCH "^([^|]*)\\|(.*)\\|([A-Z]*)$" _ "${candidate}")
    set(source "${CMAKE_MATCH_1}")
    set(root "${CMAKE_MATCH_2}")
    set(strictness "${CMAKE_MATCH_3}")
    _libtorch_is_root("${root}" is_root)
    if(is_root)
      _libtorch_read_version("${root}" version)
      _libtorch_check("${root}" "${version}" problem)
    else()
      _libtorch_read_version("${root}" version)
      set(problem "holds no include/torch and lib/libtorch_cpu.so")
      if(version AND version VERSION_LESS _LibTorch_minimum)
        _libtorch_check("${root}" "${version}" problem)
      endif()
    endif()
    if(problem STREQUAL "")
      _libtorch_cuda_version("${root}" cuda_version)
      set(LibTorch_ROOT_DIR "${root}" PARENT_SCOPE)
      set(LibTorch_VERSION "${version}" PARENT_SCOPE)
      set(LibTorch_CUDA_VERSION "${cuda_version}" PARENT_SCOPE)
      set(LibTorch_SOURCE "${source}" PARENT_SCOPE)
      return()
    endif()
    string(APPEND refused "\n  ${root} (from ${source}) ${problem}.")
    if(strictness STREQUAL STRICT)
      message(FATAL_ERROR "LibTorch cannot be used:${refused}")
    endif()
  endforeach()
  set(LibTorch_ROOT_DIR "" PARENT_SCOPE)
  set(LibTorch_VERSION "" PARENT_SCOPE)
  set(LibTorch_REFUSED "${refused}" PARENT_SCOPE)
endfunction()

if(NOT RONDE_VENV)
  if(DEFINED ENV{RONDE_VENV})
    set(RONDE_VENV "$ENV{RONDE_VENV}")
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(RONDE_VENV "$ENV{XDG_CACHE_HOME}/ronde/venv-torch-2.11.0")
  else()
    set(RONDE_VENV "$ENV{HOME}/.cache/ronde/venv-torch-2.11.0")
  endif()
endif()

_libtorch_choose()
if(LibTorch_ROOT_DIR)
  set(LibTorch_LIBRARY_DIR "${LibTorch_ROOT_DIR}/lib")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${LibTorch_REFUSED}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::c10 SHARED IMPORTED)
  # Clang 18 and newer mangle function templates with constrained parameters differently from the compilers
  # that built LibTorch: data_ptr<T>() would not link.
  set(new_mangling "$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>")
  set_target_properties(LibTorch::c10 PROPERTIES
    INTERFACE_COMPILE_OPTIONS "$<$<AND:$<COMPILE_LANGUAGE:CXX>,${new_mangling}>:-fclang-abi-compat=17>"
    IMPORTED_LOCATION "${LibTorch_LIBRARY_DIR}/libc10.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_ROOT_DIR}/include;${LibTorch_ROOT_DIR}/include/torch/csrc/api/include")
  add_library(LibTorch::torch SHARED IMPORTED)
  set_target_properties(LibTorch::torch PROPERTIES
    IMPORTED_LOCATION "${LibTorch_LIBRARY_DIR}/libtorch_cpu.so"
    INTERFACE_LINK_LIBRARIES LibTorch::c10
    INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=1)
endif()
