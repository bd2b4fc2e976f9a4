// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "backends/mpi/mpi_environment.h"

namespace ronde::mpi::testing {

/// One started call of a data collective.
struct StartedCall {
  std::string name;
  const void* data = nullptr;
  int count = 0;
  int root = -1;  ///< or the peer
  MPI_Op op = MPI_OP_NULL;
  MPI_Datatype type = MPI_DATATYPE_NULL;
};

/// An MPI library of one rank in a world of `size`, that does nothing, notes what was called, and
/// fails or hangs where a test says so.
class FakeMpi {
 public:
  int size = 1;
  bool initialized = false;
  bool finalized = false;
  int provided = MPI_THREAD_SERIALIZED;
  bool is_thread_main = true;
  bool requests_finish = true;
  int short_by = 0;                    ///< what comes is so many bytes less than is expected
  std::map<std::string, int> codes;    ///< what the named call returns, other than success
  std::map<std::string, int> fail_at;  ///< ... but only from its n-th call (counted from 0)
  std::map<std::string, int> calls;    ///< how often the named call was made
  std::vector<StartedCall> started;
  std::map<std::string, std::string> variables;

  /// The environment over this library, which has to outlive it.
  std::shared_ptr<MpiEnvironment> environment() {
    return std::make_shared<MpiEnvironment>(api(), [this](const std::string& name) {
      const auto entry = variables.find(name);
      return entry == variables.end() ? std::nullopt : std::optional(entry->second);
    });
  }

  MpiApi api() {
    MpiApi table;
    table.initialized = [this](int* flag) { return *flag = initialized, result("initialized"); };
    table.finalized = [this](int* flag) { return *flag = finalized, result("finalized"); };
    table.init_thread = [this](int*, char***, int wanted, int* level) {
      wanted_level = wanted;
      initialized = true;
      *level = provided;
      return result("init_thread");
    };
    table.query_thread = [this](int* level) { return *level = provided, result("query_thread"); };
    table.is_thread_main = [this](int* flag) {
      return *flag = is_thread_main, result("is_thread_main");
    };
    table.finalize = [this] { return finalized = true, result("finalize"); };
    table.on_finalize = [this](MPI_Comm_delete_attr_function* function, void* value) {
      finalize_by_program = [function, value] { function(MPI_COMM_SELF, 0, value, nullptr); };
      return MPI_SUCCESS;
    };
    table.get_library_version = [](char* text, int* length) {
      const std::string version = "Fake  MPI \t1.0\nbuilt for tests";
      *length = static_cast<int>(version.copy(text, version.size()));
      return MPI_SUCCESS;
    };
    table.error_string = [](int code, char* text, int* length) {
      const std::string native = "native text of " + std::to_string(code);
      *length = static_cast<int>(native.copy(text, native.size()));
      return MPI_SUCCESS;
    };
    table.comm_rank = [this](MPI_Comm, int* rank) { return *rank = 0, result("comm_rank"); };
    table.comm_size = [this](MPI_Comm, int* n) { return *n = size, result("comm_size"); };
    table.comm_get_attr = [](MPI_Comm, int, void* value, int* found) {
      static int largest_tag = 1 << 20;
      *static_cast<int**>(value) = &largest_tag;
      return *found = 1, MPI_SUCCESS;
    };
    table.comm_idup = [this](MPI_Comm, MPI_Comm* copy, MPI_Request*) {
      return *copy = MPI_COMM_SELF, result("comm_idup");
    };
    table.comm_free = [this](MPI_Comm* comm) { return *comm = MPI_COMM_NULL, result("comm_free"); };
    table.comm_set_errhandler = [this](MPI_Comm, MPI_Errhandler) {
      return result("comm_set_errhandler");
    };
    add_choice_of_ranks(table);
    table.op_create = [this](MPI_User_function*, int, MPI_Op* op) {
      return *op = MPI_REPLACE, result("op_create");
    };
    table.op_free = [this](MPI_Op* op) { return *op = MPI_OP_NULL, result("op_free"); };
    add_collectives(table);
    return table;
  }

  int wanted_level = -1;
  /// MPI_Finalize() of the program, once Ronde has asked to be told of it.
  std::function<void()> finalize_by_program;

 private:
  void add_choice_of_ranks(MpiApi& table) {
    table.comm_f2c = [](MPI_Fint) { return MPI_COMM_SELF; };
    table.comm_test_inter = [this](MPI_Comm, int* flag) {
      return *flag = 0, result("comm_test_inter");
    };
    table.comm_get_errhandler = [this](MPI_Comm, MPI_Errhandler* handler) {
      return *handler = MPI_ERRORS_ARE_FATAL, result("comm_get_errhandler");
    };
    table.errhandler_free = [this](MPI_Errhandler* handler) {
      return *handler = MPI_ERRHANDLER_NULL, result("errhandler_free");
    };
    table.comm_group = [this](MPI_Comm, MPI_Group* group) {
      return *group = MPI_GROUP_EMPTY, result("comm_group");
    };
    table.group_incl = [this](MPI_Group, int, const int*, MPI_Group* group) {
      return *group = MPI_GROUP_EMPTY, result("group_incl");
    };
    table.group_free = [this](MPI_Group* group) {
      return *group = MPI_GROUP_NULL, result("group_free");
    };
    table.comm_create_group = [this](MPI_Comm, MPI_Group, int, MPI_Comm* comm) {
      return *comm = MPI_COMM_SELF, result("comm_create_group");
    };
  }

  void add_collectives(MpiApi& table) {
    table.iallreduce = [this](const void*, void* data, int count, MPI_Datatype type, MPI_Op op,
                              MPI_Comm, MPI_Request*) {
      return start({"iallreduce", data, count, -1, op, type});
    };
    table.ibcast = [this](void* data, int count, MPI_Datatype type, int root, MPI_Comm,
                          MPI_Request*) {
      return start({"ibcast", data, count, root, MPI_OP_NULL, type});
    };
    table.iallgather = [this](const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm,
                              MPI_Request*) { return result("iallgather"); };
    table.iallgatherv = [this](const void* data, int count, MPI_Datatype type, void*, const int*,
                               const int*, MPI_Datatype, MPI_Comm, MPI_Request*) {
      return start({"iallgatherv", data, count, -1, MPI_OP_NULL, type});
    };
    table.ireduce_scatter = [this](const void* data, void*, const int* counts, MPI_Datatype type,
                                   MPI_Op op, MPI_Comm, MPI_Request*) {
      return start({"ireduce_scatter", data, counts[0], -1, op, type});
    };
    table.ialltoallv = [this](const void* data, const int* counts, const int*, MPI_Datatype type,
                              void*, const int*, const int*, MPI_Datatype, MPI_Comm, MPI_Request*) {
      return start({"ialltoallv", data, counts[0], -1, MPI_OP_NULL, type});
    };
    table.isend = [this](const void* data, int count, MPI_Datatype type, int peer, int, MPI_Comm,
                         MPI_Request* request) {
      *request = request_of(count);
      return start({"isend", data, count, peer, MPI_OP_NULL, type});
    };
    table.irecv = [this](void* data, int count, MPI_Datatype type, int peer, int, MPI_Comm,
                         MPI_Request* request) {
      *request = request_of(count);
      return start({"irecv", data, count, peer, MPI_OP_NULL, type});
    };
    table.testsome = [this](int count, MPI_Request* requests, int* ended, int* indexes,
                            MPI_Status* statuses) {
      *ended = requests_finish ? count : 0;
      for (int i = 0; i < *ended; ++i) {
        indexes[i] = i;
        statuses[i].MPI_TAG = count_of(requests[i]) - short_by;
        requests[i] = MPI_REQUEST_NULL;
      }
      return result("testsome");
    };
    table.get_count = [this](const MPI_Status* status, MPI_Datatype, int* bytes) {
      return *bytes = status->MPI_TAG, result("get_count");
    };
    table.test = [this](MPI_Request*, int* flag, MPI_Status*) {
      return *flag = requests_finish, result("test");
    };
  }

  // A request is its count.
  template <typename Request = MPI_Request>
  static Request request_of(std::intptr_t count) {
    if constexpr (std::is_pointer_v<Request>) {
      return reinterpret_cast<Request>(count);
    } else {
      return static_cast<Request>(count);
    }
  }
  template <typename Request>
  static int count_of(Request request) {
    if constexpr (std::is_pointer_v<Request>) {
      return static_cast<int>(reinterpret_cast<std::intptr_t>(request));
    } else {
      return static_cast<int>(request);
    }
  }

  int start(const StartedCall& call) {
    started.push_back(call);
    return result(call.name);
  }

  int result(const std::string& name) {
    const int made = calls[name]++;
    const auto code = codes.find(name);
    if (code == codes.end()) return MPI_SUCCESS;
    const auto first = fail_at.find(name);
    return first == fail_at.end() || made >= first->second ? code->second : MPI_SUCCESS;
  }
};

}  // namespace ronde::mpi::testing
