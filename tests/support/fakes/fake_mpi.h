// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
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

 private:
  /// A call whose last argument gets the value.
  template <typename Value>
  auto gives(const char* name, Value value) {
    return [this, name, value](auto... arguments) {
      *std::get<sizeof...(arguments) - 1>(std::tuple(arguments...)) = value;
      return result(name);
    };
  }

 public:
  MpiApi api() {
    MpiApi table;
    table.initialized = gives("initialized", std::cref(initialized));
    table.finalized = gives("finalized", std::cref(finalized));
    table.init_thread = [this](int*, char***, int wanted, int* level) {
      wanted_level = wanted;
      initialized = true;
      *level = provided;
      return result("init_thread");
    };
    table.query_thread = gives("query_thread", std::cref(provided));
    table.is_thread_main = gives("is_thread_main", std::cref(is_thread_main));
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
    table.comm_rank = gives("comm_rank", 0);
    table.comm_size = gives("comm_size", std::cref(size));
    table.comm_get_attr = [](MPI_Comm, int, void* value, int* found) {
      static int largest_tag = 1 << 20;
      *static_cast<int**>(value) = &largest_tag;
      return *found = 1, MPI_SUCCESS;
    };
    table.comm_idup = [this](MPI_Comm, MPI_Comm* copy, MPI_Request*) {
      return *copy = MPI_COMM_SELF, result("comm_idup");
    };
    table.comm_free = gives("comm_free", MPI_COMM_NULL);
    table.comm_set_errhandler = [this](auto...) { return result("comm_set_errhandler"); };
    table.comm_f2c = [](MPI_Fint) { return MPI_COMM_SELF; };
    table.comm_test_inter = gives("comm_test_inter", 0);
    table.comm_get_errhandler = gives("comm_get_errhandler", MPI_ERRORS_ARE_FATAL);
    table.errhandler_free = gives("errhandler_free", MPI_ERRHANDLER_NULL);
    table.comm_group = gives("comm_group", MPI_GROUP_EMPTY);
    table.group_incl = gives("group_incl", MPI_GROUP_EMPTY);
    table.group_free = gives("group_free", MPI_GROUP_NULL);
    table.comm_create_group = gives("comm_create_group", MPI_COMM_SELF);
    table.op_create = gives("op_create", MPI_REPLACE);
    table.op_free = gives("op_free", MPI_OP_NULL);
    add_collectives(table);
    return table;
  }

  int wanted_level = -1;
  /// MPI_Finalize() of the program, once Ronde has asked to be told of it.
  std::function<void()> finalize_by_program;

 private:
  void add_collectives(MpiApi& table) {
    table.iallreduce = [this](auto, void* data, int count, MPI_Datatype type, MPI_Op op, auto...) {
      return start({"iallreduce", data, count, -1, op, type});
    };
    table.ibcast = [this](void* data, int count, MPI_Datatype type, int root, auto...) {
      return start({"ibcast", data, count, root, MPI_OP_NULL, type});
    };
    table.iallgather = [this](auto...) { return result("iallgather"); };
    table.iallgatherv = [this](const void* data, int count, MPI_Datatype type, auto...) {
      return start({"iallgatherv", data, count, -1, MPI_OP_NULL, type});
    };
    table.ireduce_scatter = [this](const void* data, void*, const int* counts, MPI_Datatype type,
                                   MPI_Op op, auto...) {
      return start({"ireduce_scatter", data, counts[0], -1, op, type});
    };
    table.ialltoallv = [this](const void* data, const int* counts, auto, MPI_Datatype type,
                              auto...) {
      return start({"ialltoallv", data, counts[0], -1, MPI_OP_NULL, type});
    };
    const auto message = [this](const char* name) {
      return [this, name](const void* data, int count, MPI_Datatype type, int peer, int, MPI_Comm,
                          MPI_Request* request) {
        *request = request_of(count);
        return start({name, data, count, peer, MPI_OP_NULL, type});
      };
    };
    table.isend = message("isend");
    table.irecv = message("irecv");
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
  static MPI_Request request_of(int count) {
    MPI_Request request{};
    std::memcpy(&request, &count, sizeof count);
    return request;
  }
  static int count_of(const MPI_Request& request) {
    int count = 0;
    std::memcpy(&count, &request, sizeof count);
    return count;
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
