// SPDX-License-Identifier: Apache-2.0
// Each operation starts its non-blocking MPI calls at once and is then polled. MPI counts in int: a
// larger allreduce, broadcast or message is cut into chunks; other larger collectives use messages
// between pairs, as those of process sets do.
#include "backends/mpi/mpi_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backends/mpi/mpi_fabric.h"
#include "ronde/division.h"
#include "ronde/error.h"
#include "ronde/kernels.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde::mpi {
namespace {

// MPI messages of one tag between two ranks do not overtake each other, and both ranks start them
// in the same order, so all messages can have the same tag.
constexpr int kMessageTag = 1;
/// The channel of by_messages_; its tags are above kMessageTag.
constexpr std::uint32_t kMessageChannel = 1;

/// The type in which MPI reduces. Integer sums and products use the unsigned type of the same
/// width, which wraps by definition and has the bits of the signed result.
MPI_Datatype reduction_type(DataType dtype, ReduceOp op) {
  const bool wraps = op == ReduceOp::Sum || op == ReduceOp::Product;
  switch (dtype) {
    case DataType::U8:
    case DataType::Bool:
      return MPI_UINT8_T;
    case DataType::I8:
      return wraps ? MPI_UINT8_T : MPI_INT8_T;
    case DataType::I16:
      return wraps ? MPI_UINT16_T : MPI_INT16_T;
    case DataType::I32:
      return wraps ? MPI_UINT32_T : MPI_INT32_T;
    case DataType::I64:
      return wraps ? MPI_UINT64_T : MPI_INT64_T;
    case DataType::U16:
      return MPI_UINT16_T;
    case DataType::U32:
      return MPI_UINT32_T;
    case DataType::U64:
      return MPI_UINT64_T;
    case DataType::F32:
      return MPI_FLOAT;
    case DataType::F64:
      return MPI_DOUBLE;
    case DataType::F16:
    case DataType::BF16:
    case DataType::C64:
    case DataType::C128:
      break;
  }
  throw Error("the mpi backend does not reduce " + std::string(to_string(dtype)) +
              ": it has to be converted before");
}

/// The type in which MPI moves elements of this size unchanged.
MPI_Datatype moving_type(std::size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return MPI_UINT8_T;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// The sum of the counts has to fit an int.
std::vector<int> as_ints(std::span<const std::size_t> counts) {
  std::vector<int> ints;
  for (const std::size_t count : counts) ints.push_back(static_cast<int>(count));
  return ints;
}
std::vector<int> offsets_of(std::span<const std::size_t> counts) {
  std::vector<int> offsets;
  int offset = 0;
  for (const std::size_t count : counts) {
    offsets.push_back(offset);
    offset += static_cast<int>(count);
  }
  return offsets;
}

template <DataType dtype, ReduceOp op>
constexpr OwnOperator kOperator = {
    dtype, op, [](void* input, void* in_out, int* count, MPI_Datatype*) {
      const std::array<const void*, 2> operands = {input, in_out};
      best_kernels().reduce(in_out, operands, static_cast<std::size_t>(*count),
                            {.dtype = dtype, .op = op}, Store::Regular);
    }};

/// Calls `visit(address, count)` for parts of at most `most` elements that make up `count` elements
/// at `data`.
template <typename Pointer, typename Visit>
void in_chunks(Pointer* data, std::size_t count, std::size_t element_bytes, std::size_t most,
               Visit visit) {
  for (std::size_t at = 0; at < count; at += most) {
    visit(advanced(data, at * element_bytes), static_cast<int>(std::min(most, count - at)));
  }
}

}  // namespace

const std::array<OwnOperator, kOwnOperatorCount>& own_operators() {
  static constexpr std::array<OwnOperator, kOwnOperatorCount> operators = {
      kOperator<DataType::U8, ReduceOp::Min>,  kOperator<DataType::U8, ReduceOp::Max>,
      kOperator<DataType::U16, ReduceOp::Min>, kOperator<DataType::U16, ReduceOp::Max>,
      kOperator<DataType::U32, ReduceOp::Min>, kOperator<DataType::U32, ReduceOp::Max>,
      kOperator<DataType::U64, ReduceOp::Min>, kOperator<DataType::U64, ReduceOp::Max>,
      kOperator<DataType::F32, ReduceOp::Min>, kOperator<DataType::F32, ReduceOp::Max>,
      kOperator<DataType::F64, ReduceOp::Min>, kOperator<DataType::F64, ReduceOp::Max>,
      kOperator<DataType::U8, ReduceOp::Sum>,  kOperator<DataType::I8, ReduceOp::Sum>,
      kOperator<DataType::I16, ReduceOp::Sum>, kOperator<DataType::U16, ReduceOp::Sum>,
  };
  return operators;
}

/// The MPI calls of one operation. All start at once, so that every rank starts the calls of all
/// operations in the same order.
class MpiBackend::PendingCalls final : public Operation {
 public:
  PendingCalls(MpiEnvironment& environment, std::shared_ptr<Counters> counters)
      : environment_(environment), counters_(std::move(counters)) {}

  /// Keeps the state if calls are in progress, as MPI reads and writes its memory.
  ~PendingCalls() override {
    if (next_ < state_->requests.size()) keep_until_exit(state_);
  }

  template <typename Function, typename... Args>
  void start(const char* name, const Function& function, Args... args) {
    MPI_Request request = MPI_REQUEST_NULL;
    environment_.call(name, function, args..., &request);
    state_->requests.push_back(request);
    ++counters_->collective_calls;
  }

  /// Stores an array that MPI reads until the call is finished.
  int* keep(std::vector<int> numbers) {
    state_->arrays.push_back(std::move(numbers));
    return state_->arrays.back().data();
  }

  bool poll() override {
    while (next_ < state_->requests.size()) {
      ++counters_->polls;
      if (!environment_.test(state_->requests[next_])) return false;
      ++next_;
    }
    return true;
  }

  std::uint64_t progress() const override { return next_; }

 private:
  struct State {
    std::vector<MPI_Request> requests;
    std::vector<std::vector<int>> arrays;
  };

  MpiEnvironment& environment_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::size_t next_ = 0;  ///< the first request that is not known to be finished
};

MpiBackend::MpiBackend(std::shared_ptr<MpiEnvironment> environment,
                       const MpiBackendOptions& options)
    : mpi_(std::move(environment)),
      max_count_(std::clamp<std::size_t>(options.max_count, 1, INT_MAX)),
      between_hosts_(options.between_hosts),
      exact_(options.exact) {
  communicator_ = mpi_->duplicate(options.deadline);
  Topology topology;
  topology.rank = mpi_->rank();
  topology.size = mpi_->size();
  BackendContext context;
  context.topology = &topology;
  context.set = kMessageChannel;
  context.ranks.resize(static_cast<std::size_t>(mpi_->size()));
  std::iota(context.ranks.begin(), context.ranks.end(), 0);
  by_messages_ = make_fabric_backend(
      std::make_shared<MpiFabric>(mpi_.environment(), communicator_, max_count_, false), context,
      {.name = "mpi", .exact = exact_}, false);
  constexpr int kCommutes = 1;
  for (std::size_t i = 0; i < own_ops_.size(); ++i) {
    mpi_->call("MPI_Op_create", mpi_->api().op_create, own_operators()[i].function, kCommutes,
               &own_ops_[i]);
  }
}

Capabilities MpiBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.ops.set();
  capabilities.device = DeviceKind::Cpu;
  capabilities.wants_packed = true;
  capabilities.widen_halves = true;
  if (between_hosts_) capabilities.waiting = Waiting::Pause;
  return capabilities;
}

std::unique_ptr<MpiBackend::PendingCalls> MpiBackend::begin(std::size_t bytes) {
  ++counters_->operations;
  counters_->payload_bytes += bytes;
  return std::make_unique<PendingCalls>(*mpi_, counters_);
}

MPI_Op MpiBackend::operator_for(DataType dtype, ReduceOp op) const {
  for (std::size_t i = 0; i < own_ops_.size(); ++i) {
    if (own_operators()[i].dtype == dtype && own_operators()[i].op == op) return own_ops_[i];
  }
  const bool is_bool = dtype == DataType::Bool;
  switch (op) {
    case ReduceOp::Sum:
      return is_bool ? MPI_LOR : MPI_SUM;
    case ReduceOp::Product:
      return is_bool ? MPI_LAND : MPI_PROD;
    case ReduceOp::Min:
      return is_bool ? MPI_LAND : MPI_MIN;
    case ReduceOp::Max:
      return is_bool ? MPI_LOR : MPI_MAX;
    case ReduceOp::BitAnd:
      return is_bool ? MPI_LAND : MPI_BAND;
    case ReduceOp::BitOr:
      return is_bool ? MPI_LOR : MPI_BOR;
    case ReduceOp::BitXor:
      return is_bool ? MPI_LXOR : MPI_BXOR;
    case ReduceOp::Average:
    case ReduceOp::Adasum:
      break;
  }
  throw Error("the mpi backend does not compute " + std::string(to_string(op)) +
              ": Ronde does that around it");
}

/// Whether the order of operands matters and MPI must not choose it.
bool MpiBackend::reduces_in_order(DataType dtype, ReduceOp op) const {
  return exact_ && is_floating(dtype) && (op == ReduceOp::Sum || op == ReduceOp::Product);
}

std::unique_ptr<Operation> MpiBackend::allreduce(const AllreduceCall& call) {
  const Segment& segment = only_segment(call.segments, name());
  if (segment.input != segment.output || call.prescale != 1.0 || !call.final.is_identity()) {
    throw Error("the mpi backend reduces in place and does not scale");
  }
  if (reduces_in_order(call.dtype, call.op)) return by_messages_->allreduce(call);
  const MPI_Datatype type = reduction_type(call.dtype, call.op);
  const MPI_Op op = operator_for(call.dtype, call.op);
  const std::size_t element_bytes = size_of(call.dtype);
  auto pending = begin(segment.count * element_bytes);
  in_chunks(segment.output, segment.count, element_bytes, max_count_, [&](void* data, int count) {
    pending->start("MPI_Iallreduce", mpi_->api().iallreduce, MPI_IN_PLACE, data, count, type, op,
                   communicator_);
  });
  return pending;
}

std::unique_ptr<Operation> MpiBackend::broadcast(const BroadcastCall& call) {
  const Segment& segment = only_segment(call.segments, name());
  const std::size_t element_bytes = size_of(call.dtype);
  const std::size_t bytes = segment.count * element_bytes;
  if (mpi_->rank() == call.root && segment.input != segment.output && bytes > 0) {
    std::memmove(segment.output, segment.input, bytes);
  }
  auto pending = begin(bytes);
  const MPI_Datatype type = moving_type(element_bytes);
  in_chunks(segment.output, segment.count, element_bytes, max_count_, [&](void* data, int count) {
    pending->start("MPI_Ibcast", mpi_->api().ibcast, data, count, type, call.root, communicator_);
  });
  return pending;
}

std::unique_ptr<Operation> MpiBackend::allgather(const AllgatherCall& call) {
  check_counts(call.counts);
  const auto rank = static_cast<std::size_t>(mpi_->rank());
  const std::size_t total = sum(call.counts);
  auto pending = begin(total * size_of(call.dtype));
  if (total == 0) return pending;
  if (total > max_count_) return by_messages_->allgather(call);  // offsets would not fit an int
  const std::size_t own_offset = sum(call.counts.first(rank)) * size_of(call.dtype);
  const bool in_place = call.input == static_cast<std::byte*>(call.output) + own_offset;
  const int* const counts = pending->keep(as_ints(call.counts));
  const int* const offsets = pending->keep(offsets_of(call.counts));
  const MPI_Datatype type = moving_type(size_of(call.dtype));
  pending->start("MPI_Iallgatherv", mpi_->api().iallgatherv,
                 in_place ? static_cast<const void*>(MPI_IN_PLACE) : call.input, counts[rank], type,
                 call.output, counts, offsets, type, communicator_);
  return pending;
}

std::unique_ptr<Operation> MpiBackend::alltoall(const AlltoallCall& call) {
  check_counts(call.send_counts);
  check_counts(call.receive_counts);
  auto pending = begin(sum(call.receive_counts) * size_of(call.dtype));
  if (call.largest_count == 0) return pending;
  // All ranks must make the same calls, so offsets have to fit an int on every rank.
  if (call.largest_count > max_count_ / call.send_counts.size()) {
    return by_messages_->alltoall(call);
  }
  const int* const send_counts = pending->keep(as_ints(call.send_counts));
  const int* const send_offsets = pending->keep(offsets_of(call.send_counts));
  const int* const receive_counts = pending->keep(as_ints(call.receive_counts));
  const int* const receive_offsets = pending->keep(offsets_of(call.receive_counts));
  const MPI_Datatype type = moving_type(size_of(call.dtype));
  // A rank that sends nothing may pass one address for both buffers. Open MPI 4.1 treats equal
  // addresses as MPI_IN_PLACE: the rank would send what it should receive. If it receives nothing
  // either, it would not advance the communicator's tag, and its later calls would match no other
  // rank's.
  static constexpr std::byte kNothing{};
  const void* const input = call.input == call.output ? &kNothing : call.input;
  pending->start("MPI_Ialltoallv", mpi_->api().ialltoallv, input, send_counts, send_offsets, type,
                 call.output, receive_counts, receive_offsets, type, communicator_);
  return pending;
}

std::unique_ptr<Operation> MpiBackend::send(const SendCall& call) {
  const std::size_t element_bytes = size_of(call.dtype);
  const MPI_Datatype type = moving_type(element_bytes);
  auto pending = begin(call.count * element_bytes);
  in_chunks(call.input, call.count, element_bytes, max_count_, [&](const void* data, int count) {
    pending->start("MPI_Isend", mpi_->api().isend, data, count, type, call.peer, kMessageTag,
                   communicator_);
  });
  return pending;
}

std::unique_ptr<Operation> MpiBackend::recv(const RecvCall& call) {
  const std::size_t element_bytes = size_of(call.dtype);
  const MPI_Datatype type = moving_type(element_bytes);
  auto pending = begin(call.count * element_bytes);
  in_chunks(call.output, call.count, element_bytes, max_count_, [&](void* data, int count) {
    pending->start("MPI_Irecv", mpi_->api().irecv, data, count, type, call.peer, kMessageTag,
                   communicator_);
  });
  return pending;
}

std::unique_ptr<Operation> MpiBackend::reducescatter(const ReducescatterCall& call) {
  check_counts(call.counts);
  if (call.input == nullptr || call.prescale != 1.0 || !call.final.is_identity()) {
    throw Error("the mpi backend does not scale, and needs an input");
  }
  if (reduces_in_order(call.dtype, call.op)) return by_messages_->reducescatter(call);
  const MPI_Datatype type = reduction_type(call.dtype, call.op);
  const MPI_Op op = operator_for(call.dtype, call.op);
  const std::size_t total = sum(call.counts);
  auto pending = begin(total * size_of(call.dtype));
  if (total == 0) return pending;
  if (total > max_count_) return by_messages_->reducescatter(call);
  const int* const counts = pending->keep(as_ints(call.counts));
  pending->start("MPI_Ireduce_scatter", mpi_->api().ireduce_scatter, call.input, call.output,
                 counts, type, op, communicator_);
  return pending;
}

void MpiBackend::check_counts(std::span<const std::size_t> counts) const {
  if (counts.size() == static_cast<std::size_t>(mpi_->size())) return;
  throw Error("an operation of " + std::to_string(mpi_->size()) + " ranks got " +
              std::to_string(counts.size()) + " counts");
}

std::optional<std::chrono::nanoseconds> MpiBackend::tend() {
  if (!between_hosts_) return std::nullopt;
  mpi_->progress(communicator_);
  return std::chrono::milliseconds(10);
}

void MpiBackend::abort() noexcept {
  // Freeing requests, operators and the communicator would wait for dead ranks.
  mpi_->abandon();
}

void MpiBackend::close() {
  for (MPI_Op& op : own_ops_) mpi_->call("MPI_Op_free", mpi_->api().op_free, &op);
  mpi_->free(communicator_);
  mpi_.leave(true);
}

StatsGroup MpiBackend::stats() const {
  StatsGroup group{"mpi",
                   {{"operations", counters_->operations},
                    {"collective_calls", counters_->collective_calls},
                    {"polls", counters_->polls},
                    {"payload_bytes", counters_->payload_bytes}}};
  if (!exact_) return group;
  for (const auto& [name, value] : by_messages_->stats().counters) {
    group.counters.emplace_back("in_rank_order_" + name, value);
  }
  return group;
}

}  // namespace ronde::mpi
