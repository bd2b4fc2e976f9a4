# SPDX-License-Identifier: Apache-2.0
# run_step(<what> <command>...): runs a command and ends the test with its output if it fails.
function(run_step what)
  message(STATUS "${what}")
  execute_process(COMMAND ${ARGN}
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    string(REPLACE ";" " " command "${ARGN}")
    message(FATAL_ERROR "${what} failed (${status}): ${command}\n${output}")
  endif()
  set(run_step_output "${output}" PARENT_SCOPE)
endfunction()

# Copies the sources from <source> to <work>, to be built in <work>/build. There the compiler is called
# with the same paths, relative to what RondeOptions.cmake calls ccache's base folder, as in a build in
# <source>/build: ccache has most objects.
function(copy_tree source work)
  file(REMOVE_RECURSE "${work}")
  foreach(part CMakeLists.txt LICENSE api backends c_api cmake core docs examples fortran observe python tests tools torch_ext)
    file(COPY "${source}/${part}" DESTINATION "${work}")
  endforeach()
endfunction()

# Ends the test unless <text> contains <part>.
function(expect_contains text part)
  string(FIND "${text}" "${part}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "expected to read\n  ${part}\nin\n${text}")
  endif()
endfunction()

# Ends the test unless the consumer that was configured last has exactly these programs.
function(expect_programs)
  expect_contains("${run_step_output}" "install_consumer: ${ARGN}\n")
endfunction()

# Ends the test if a Ronde library of <program> is taken from anywhere but below <prefix>.
function(expect_ronde_libraries_below prefix program)
  run_step("ldd ${program}" ldd "${program}")
  set(run_step_output "${run_step_output}" PARENT_SCOPE)
  string(REGEX MATCHALL "libronde[^ ]* => [^ ]*" resolved "${run_step_output}")
  if(NOT resolved)
    message(FATAL_ERROR "${program} loads no library of Ronde:\n${run_step_output}")
  endif()
  foreach(entry IN LISTS resolved)
    if(NOT entry MATCHES " => ${prefix}/")
      message(FATAL_ERROR "${program} takes a library from outside ${prefix}: ${entry}")
    endif()
  endforeach()
endfunction()
