// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <functional>
#include <string>

namespace ronde::mpi {

/// Every MPI function that Ronde calls, so that tests can put their own in place. The defaults are
/// the PMPI_ names: a tool that intercepts MPI_ calls must not see, or re-enter, Ronde's.
///
/// Thread-safety: the functions are called under MpiEnvironment's lock.
struct MpiApi {
  std::function<int(int*)> initialized = PMPI_Initialized;
  std::function<int(int*)> finalized = PMPI_Finalized;
  std::function<int(int*, char***, int, int*)> init_thread = PMPI_Init_thread;
  std::function<int(int*)> query_thread = PMPI_Query_thread;
  std::function<int(int*)> is_thread_main = PMPI_Is_thread_main;
  std::function<int()> finalize = PMPI_Finalize;
  /// Lets MPI_Finalize call `function` with `value` before it does anything else (MPI 4.0, 11.2.4).
  std::function<int(MPI_Comm_delete_attr_function*, void*)> on_finalize =
      [](MPI_Comm_delete_attr_function* function, void* value) {
        int key = MPI_KEYVAL_INVALID;
        const int code = PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, function, &key, nullptr);
        return code == MPI_SUCCESS ? PMPI_Comm_set_attr(MPI_COMM_SELF, key, value) : code;
      };
  std::function<int(char*, int*)> get_library_version = PMPI_Get_library_version;
  std::function<int(int, char*, int*)> error_string = PMPI_Error_string;

  std::function<MPI_Comm(MPI_Fint)> comm_f2c = [](MPI_Fint handle) {
    return PMPI_Comm_f2c(handle);  // a macro in some libraries
  };
  std::function<int(MPI_Comm, int*)> comm_test_inter = PMPI_Comm_test_inter;
  std::function<int(MPI_Comm, int*)> comm_rank = PMPI_Comm_rank;
  std::function<int(MPI_Comm, int*)> comm_size = PMPI_Comm_size;
  std::function<int(MPI_Comm, MPI_Comm*, MPI_Request*)> comm_idup = PMPI_Comm_idup;
  std::function<int(MPI_Comm*)> comm_free = PMPI_Comm_free;
  std::function<int(MPI_Comm, int, void*, int*)> comm_get_attr = PMPI_Comm_get_attr;
  std::function<int(MPI_Comm, MPI_Errhandler)> comm_set_errhandler = PMPI_Comm_set_errhandler;
  std::function<int(MPI_Comm, MPI_Errhandler*)> comm_get_errhandler = PMPI_Comm_get_errhandler;
  std::function<int(MPI_Errhandler*)> errhandler_free = PMPI_Errhandler_free;
  std::function<int(MPI_Comm, MPI_Group*)> comm_group = PMPI_Comm_group;
  std::function<int(MPI_Group, int, const int*, MPI_Group*)> group_incl = PMPI_Group_incl;
  std::function<int(MPI_Group*)> group_free = PMPI_Group_free;
  std::function<int(MPI_Comm, MPI_Group, int, MPI_Comm*)> comm_create_group =
      PMPI_Comm_create_group;

  std::function<int(MPI_User_function*, int, MPI_Op*)> op_create = PMPI_Op_create;
  std::function<int(MPI_Op*)> op_free = PMPI_Op_free;

  std::function<int(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request*)>
      iallreduce = PMPI_Iallreduce;
  std::function<int(void*, int, MPI_Datatype, int, MPI_Comm, MPI_Request*)> ibcast = PMPI_Ibcast;
  std::function<int(const void*, void*, const int*, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request*)>
      ireduce_scatter = PMPI_Ireduce_scatter;
  std::function<int(const void*, const int*, const int*, MPI_Datatype, void*, const int*,
                    const int*, MPI_Datatype, MPI_Comm, MPI_Request*)>
      ialltoallv = PMPI_Ialltoallv;
  std::function<int(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)> isend =
      PMPI_Isend;
  std::function<int(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)> irecv = PMPI_Irecv;
  std::function<int(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm,
                    MPI_Request*)>
      iallgather = PMPI_Iallgather;
  std::function<int(const void*, int, MPI_Datatype, void*, const int*, const int*, MPI_Datatype,
                    MPI_Comm, MPI_Request*)>
      iallgatherv = PMPI_Iallgatherv;
  std::function<int(MPI_Request*, int*, MPI_Status*)> test = PMPI_Test;
  std::function<int(int, MPI_Request*, int*, int*, MPI_Status*)> testsome = PMPI_Testsome;
  std::function<int(int, int, MPI_Comm, int*, MPI_Status*)> iprobe = PMPI_Iprobe;
  std::function<int(const MPI_Status*, MPI_Datatype, int*)> get_count = PMPI_Get_count;
};

/// "MPI_Iallreduce failed with code 15: <the library's own text>".
std::string failure_text(const MpiApi& api, const char* call, int code);

}  // namespace ronde::mpi
