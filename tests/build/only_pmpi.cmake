# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=<nm> -DFILE=<library or program> -P ...
# Ronde calls MPI by its PMPI_ names alone: a profiler that wraps the MPI_ names sees the program's
# own calls, not those that Ronde makes on a thread of its own.
include("${CMAKE_CURRENT_LIST_DIR}/run_step.cmake")
set(table --dynamic)
if(FILE MATCHES "\\.(a|o)$")
  set(table "")
endif()
run_step("nm" "${NM}" ${table} --undefined-only "${FILE}")
# Constants, which some MPIs keep in variables, are written in capitals.
string(REGEX MATCHALL " U MPI_([A-Z][a-z]|T_)[A-Za-z_]*" calls "${run_step_output}")
if(calls)
  list(REMOVE_DUPLICATES calls)
  list(TRANSFORM calls REPLACE " U " "\n  ")
  list(JOIN calls "" calls)
  message(FATAL_ERROR "${FILE} calls MPI by names that are not PMPI_:${calls}")
endif()
if(NOT run_step_output MATCHES " U PMPI_Init_thread")
  message(FATAL_ERROR "${FILE} calls no PMPI_Init_thread: is this the right file?")
endif()
