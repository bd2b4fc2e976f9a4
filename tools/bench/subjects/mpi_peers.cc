// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <thread>

#include "backends/mpi/mpi_environment.h"
#include "ronde/error.h"
#include "tools/bench/subjects/peers.h"

// Note [MPI calls of the benchmarks]
// Ronde initialises MPI, and asks for MPI_THREAD_SERIALIZED: calls may come from any thread, but
// never two at once. The benchmarks call MPI themselves between Ronde's operations, when a backend
// over a fabric may still tend its messages: so all calls are made under Ronde's own lock. One that
// blocks keeps Ronde's thread waiting, and advances its messages itself: only those block that
// follow a barrier.

namespace ronde::tool {
namespace {

/// Throws Error if the call fails.
template <typename Function, typename... Args>
void call(const char* name, const Function& function, Args... args) {
  mpi::MpiEnvironment::of_process()->call(name, function, args...);
}

/// Ronde initialises MPI unless another launcher has started the ranks.
bool has_started() {
  int started = 0;
  MPI_Initialized(&started);
  return started != 0;
}

class MpiPeers final : public Peers {
 public:
  explicit MpiPeers(bool oversubscribed) : oversubscribed_(oversubscribed) {
    call("MPI_Comm_size", MPI_Comm_size, MPI_COMM_WORLD, &size_);
  }

  void barrier() override {
    // A blocking call would keep the lock from Ronde's thread, which tells who is lost, and the
    // core from the rank that it waits for.
    MPI_Request request = MPI_REQUEST_NULL;
    call("MPI_Ibarrier", MPI_Ibarrier, MPI_COMM_WORLD, &request);
    int finished = 0;
    call("MPI_Test", MPI_Test, &request, &finished, MPI_STATUS_IGNORE);
    while (finished == 0) {
      end_if_one_is_lost();  // MPI would wait for it for ever
      if (oversubscribed_) std::this_thread::yield();
      call("MPI_Test", MPI_Test, &request, &finished, MPI_STATUS_IGNORE);
    }
  }

  void maximum(std::vector<double>& values) override {
    barrier();  // yields while it waits
    call("MPI_Allreduce", MPI_Allreduce, MPI_IN_PLACE, values.data(),
         static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }

  std::vector<std::string> all_of(const std::string& text) override {
    barrier();
    std::vector<int> lengths(static_cast<std::size_t>(size_));
    const auto own = static_cast<int>(text.size());
    call("MPI_Allgather", MPI_Allgather, &own, 1, MPI_INT, lengths.data(), 1, MPI_INT,
         MPI_COMM_WORLD);
    std::vector<std::string> all;
    for (int rank = 0; rank < size_; ++rank) {
      std::string& one = all.emplace_back(text);
      one.resize(static_cast<std::size_t>(lengths[all.size() - 1]));
      call("MPI_Bcast", MPI_Bcast, one.data(), static_cast<int>(one.size()), MPI_CHAR, rank,
           MPI_COMM_WORLD);
    }
    return all;
  }

  std::optional<std::string> thread_level() const override {
    int level = MPI_THREAD_SINGLE;
    call("MPI_Query_thread", MPI_Query_thread, &level);
    if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
    if (level == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
    return level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED" : "MPI_THREAD_MULTIPLE";
  }

 private:
  const bool oversubscribed_;
  int size_ = 1;
};

MPI_Datatype type_of(DataType dtype) {
  static const std::map<DataType, MPI_Datatype> types = {
      {DataType::U8, MPI_UINT8_T},           {DataType::I8, MPI_INT8_T},
      {DataType::I16, MPI_INT16_T},          {DataType::I32, MPI_INT32_T},
      {DataType::I64, MPI_INT64_T},          {DataType::F32, MPI_FLOAT},
      {DataType::F64, MPI_DOUBLE},           {DataType::Bool, MPI_C_BOOL},
      {DataType::U16, MPI_UINT16_T},         {DataType::U32, MPI_UINT32_T},
      {DataType::U64, MPI_UINT64_T},         {DataType::C64, MPI_C_FLOAT_COMPLEX},
      {DataType::C128, MPI_C_DOUBLE_COMPLEX}};
  const auto found = types.find(dtype);
  if (found != types.end()) return found->second;
  throw UsageError("--baseline: MPI has no type for " + std::string(to_string(dtype)) +
                   "; compare another --dtype, or leave --baseline out");
}

/// The number of elements, as MPI counts.
int count_of(const Request& request) {
  std::int64_t count = 1;
  for (const std::int64_t extent : request.shape) count *= extent;
  if (count > std::numeric_limits<int>::max()) {
    throw UsageError("--baseline: one call of MPI takes at most 2^31-1 elements, not " +
                     std::to_string(count) + "; lower --max");
  }
  return static_cast<int>(count);
}

class PlainMpi final : public Subject {
 public:
  PlainMpi() { call("MPI_Comm_size", MPI_Comm_size, MPI_COMM_WORLD, &size_); }

  std::string backend() const override { return "plain MPI"; }
  void quiesce() override {}

  void run(Request request) override {
    if (request.kind == Collective::Barrier) {
      return call("MPI_Barrier", MPI_Barrier, MPI_COMM_WORLD);
    }
    const MPI_Datatype type = type_of(request.dtype);
    const int count = count_of(request);
    switch (request.kind) {
      case Collective::Allreduce:
        return call("MPI_Allreduce", MPI_Allreduce, source(request), request.output, count, type,
                    sum_of(request.dtype), MPI_COMM_WORLD);
      case Collective::Broadcast:
        return call("MPI_Bcast", MPI_Bcast, request.output, count, type, request.root,
                    MPI_COMM_WORLD);
      case Collective::Allgather:
        return call("MPI_Allgather", MPI_Allgather, request.input, count, type, request.output,
                    count, type, MPI_COMM_WORLD);
      case Collective::Reducescatter:
        return call("MPI_Reduce_scatter_block", MPI_Reduce_scatter_block, request.input,
                    request.output, count / size_, type, sum_of(request.dtype), MPI_COMM_WORLD);
      case Collective::Alltoall:
        return call("MPI_Alltoall", MPI_Alltoall, request.input, count / size_, type,
                    request.output, count / size_, type, MPI_COMM_WORLD);
      default:
        return;
    }
  }

 private:
  static const void* source(const Request& request) {
    return request.input == request.output ? MPI_IN_PLACE : request.input;
  }
  static MPI_Op sum_of(DataType dtype) { return dtype == DataType::Bool ? MPI_LOR : MPI_SUM; }

  int size_ = 1;
};

}  // namespace

std::unique_ptr<Peers> make_peers(bool oversubscribed) {
  if (!has_started()) return make_socket_peers(oversubscribed);
  return std::make_unique<MpiPeers>(oversubscribed);
}

std::unique_ptr<Subject> make_plain_mpi() {
  return has_started() ? std::make_unique<PlainMpi>() : nullptr;
}

// Ronde turns some of UCX's transports off where it initialises MPI, for the sake of survivors
// (Note [UCX and the death of a peer]). "all" is UCX's own default.
void let_mpi_be_fast() {
  constexpr int kKeepWhatIsSet = 0;
  setenv("UCX_TLS", "all", kKeepWhatIsSet);
}

}  // namespace ronde::tool
