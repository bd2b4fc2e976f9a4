// SPDX-License-Identifier: Apache-2.0
// The functions that start an operation.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c_api/src/arguments.h"
#include "c_api/src/groups.h"
#include "c_api/src/handle_table.h"
#include "ronde/ronde.h"
#include "ronde/ronde_c.h"
#include "ronde/run.h"

namespace ronde::c {
namespace {

constexpr std::pair<DataType, int> kDataTypes[] = {
    {DataType::U8, RONDE_U8},     {DataType::I8, RONDE_I8},   {DataType::I16, RONDE_I16},
    {DataType::I32, RONDE_I32},   {DataType::I64, RONDE_I64}, {DataType::F16, RONDE_F16},
    {DataType::BF16, RONDE_BF16}, {DataType::F32, RONDE_F32}, {DataType::F64, RONDE_F64},
    {DataType::Bool, RONDE_BOOL}, {DataType::U16, RONDE_U16}, {DataType::U32, RONDE_U32},
    {DataType::U64, RONDE_U64},   {DataType::C64, RONDE_C64}, {DataType::C128, RONDE_C128}};
constexpr std::pair<ReduceOp, int> kReduceOps[] = {
    {ReduceOp::Sum, RONDE_SUM},         {ReduceOp::Average, RONDE_AVERAGE},
    {ReduceOp::Min, RONDE_MIN},         {ReduceOp::Max, RONDE_MAX},
    {ReduceOp::Product, RONDE_PRODUCT}, {ReduceOp::Adasum, RONDE_ADASUM},
    {ReduceOp::BitAnd, RONDE_BIT_AND},  {ReduceOp::BitOr, RONDE_BIT_OR},
    {ReduceOp::BitXor, RONDE_BIT_XOR}};
constexpr auto kIsSame = [](const auto& pair) {
  return static_cast<int>(pair.first) == pair.second;
};
static_assert(std::ranges::all_of(kDataTypes, kIsSame) && std::size(kDataTypes) == kDataTypeCount);
static_assert(std::ranges::all_of(kReduceOps, kIsSame) && std::size(kReduceOps) == kReduceOpCount);
static_assert(kAnyRank == RONDE_ANY && kGlobalSet.id == RONDE_ALL_RANKS);

// An older program has not cleared what a newer field of the same size of struct would take.
static_assert(sizeof(ronde_tensor) == offsetof(ronde_tensor, capacity) + sizeof(std::int64_t));
static_assert(sizeof(ronde_operation_options) ==
              offsetof(ronde_operation_options, rank_factor) + sizeof(double));

struct Operation {
  Request request;
  std::shared_ptr<Result> result = nullptr;
};

/// Checks what this rank alone can see to be wrong.
std::optional<ronde_tensor> tensor_of(const ronde_tensor* given) {
  if (given == nullptr) return std::nullopt;
  const ronde_tensor tensor = known_part(*given, RONDE_TENSOR_INIT, "ronde_tensor");
  expect(tensor.dtype >= 0 && tensor.dtype < static_cast<int>(kDataTypeCount),
         "dtype is none that there is");
  expect(tensor.device >= RONDE_CPU, "device is none that there is");
  expect(tensor.device != RONDE_CPU || tensor.stream == nullptr,
         "stream is for buffers on a GPU, and device is RONDE_CPU");
  expect(tensor.dims >= 0 && tensor.dims <= RONDE_MAX_DIMS,
         "dims is not among 0 to RONDE_MAX_DIMS");
  expect(tensor.dims == 0 || tensor.shape != nullptr, "shape is NULL");
  expect(tensor.capacity >= RONDE_CAPACITY_OF_SHAPE, "capacity is negative");
  return tensor;
}

// The engine refuses extents below 0 and shapes of too many elements, so that the other ranks,
// which wait for this one, fail as well.

std::vector<std::int64_t> shape_of(const ronde_tensor& tensor) {
  return {tensor.shape, tensor.shape + tensor.dims};
}

/// 0 where an extent is negative; the largest number where there are more.
std::uint64_t count_of(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent <= 0) return 0;
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(extent), &count)) count = ~0ULL;
  }
  return count;
}

std::uint64_t capacity_of(const ronde_tensor& out) {
  if (out.capacity == RONDE_CAPACITY_OF_SHAPE) return count_of(shape_of(out));
  return static_cast<std::uint64_t>(out.capacity);
}

/// RONDE_E_TOO_SMALL unless a result of this shape fits; `operation` is whose.
void expect_room(std::uint64_t capacity, const std::vector<std::int64_t>& shape,
                 const std::string& operation) {
  const std::uint64_t count = count_of(shape);
  if (count <= capacity) return;
  std::string extents;
  for (const std::int64_t extent : shape) {
    extents += (extents.empty() ? "" : ", ") + std::to_string(extent);
  }
  throw Failure(RONDE_E_TOO_SMALL, operation + ": the result has " + std::to_string(count) +
                                       " elements [" + extents + "], and out has room for " +
                                       std::to_string(capacity));
}

/// Makes a request for buffers like `tensor`, which are still to be set.
Request request_of(Collective kind, const ronde_tensor& tensor,
                   const ronde_operation_options& options) {
  Request request;
  request.kind = kind;
  if (options.name != nullptr) request.name = options.name;
  request.dtype = static_cast<DataType>(tensor.dtype);
  request.shape = shape_of(tensor);
  if (tensor.device != RONDE_CPU) {
    request.device = {.kind = DeviceKind::Cuda, .index = tensor.device};
    request.stream = tensor.stream;
  }
  expect(options.op >= 0 && options.op < static_cast<int>(kReduceOpCount),
         "op is none that there is");
  request.op = static_cast<ReduceOp>(options.op);
  request.prescale = options.prescale;
  request.postscale = options.postscale;
  if (options.rank_factor != 0) request.rank_factor = options.rank_factor;
  if (options.wire_dtype != RONDE_NO_DTYPE) {
    expect(options.wire_dtype >= 0 && options.wire_dtype < static_cast<int>(kDataTypeCount),
           "wire_dtype is none that there is");
    request.wire_dtype = static_cast<DataType>(options.wire_dtype);
  }
  request.root = options.root;
  request.peer = options.peer;
  request.tag = options.tag;
  expect(options.split_count >= 0 && (options.splits == nullptr) == (options.split_count == 0),
         "splits and split_count do not fit: NULL has none, and all others have some");
  request.splits.assign(options.splits, options.splits + options.split_count);
  request.set = set_of(options.process_set);
  request.caller_orders = options.caller_orders != 0;
  request.timeout = timeout_of(options.timeout_s, "timeout_s");
  return request;
}

void set_input(Request& request, const ronde_tensor& in) {
  if (in.data == nullptr && count_of(request.shape) > 0) {
    const bool is_read =
        request.kind != Collective::Broadcast || ronde::rank_in(request.set) == request.root;
    expect(!is_read, "in->data is NULL");
  }
  request.input = in.data;
}

/// Sets the output of an operation whose result has the shape of the request.
void set_output(Operation& operation, const ronde_tensor& out) {
  Request& request = operation.request;
  expect(out.data != nullptr || count_of(request.shape) == 0, "out->data is NULL");
  expect_room(capacity_of(out), request.shape, name_of(request));
  request.output = out.data;
  operation.result = std::make_shared<Result>(request.dtype, out.data);
  operation.result->shape = request.shape;
}

/// Returns the memory that the program gives for a result. What it throws fails the work.
void* allocate(const ronde_operation_options& options, const std::vector<std::int64_t>& shape) {
  const CallbackScope scope;
  const GroupOfCallback own_group;
  void* const memory =
      options.allocate(options.allocate_context, shape.data(), static_cast<int>(shape.size()));
  if (memory == nullptr && count_of(shape) > 0) throw std::bad_alloc();
  return memory;
}

/// Sets the output of an operation whose shape depends on all ranks' inputs.
void set_shaped_output(Operation& operation, const std::optional<ronde_tensor>& out,
                       const ronde_operation_options& options) {
  Request& request = operation.request;
  if (!out && options.allocate == nullptr && request.device.kind != DeviceKind::Cpu) {
    throw Failure(RONDE_E_UNSUPPORTED,
                  "out and allocate are NULL, which is for results on the CPU: on a GPU give one");
  }
  const auto result = std::make_shared<Result>(request.dtype, out ? out->data : nullptr);
  if (out) {
    const std::uint64_t capacity = capacity_of(*out);
    expect(out->data != nullptr || capacity == 0, "out->data is NULL");
    request.output = out->data;  // submit() compares it with memory in flight
    const std::string name = ronde::rank_text(request.set) + ": " + name_of(request);
    request.allocate_output = [=](const std::vector<std::int64_t>& shape) {
      expect_room(capacity, shape, name);
      result->shape = shape;
      return result->data;
    };
  } else {
    request.allocate_output = [result, options](const std::vector<std::int64_t>& shape) {
      result->shape = shape;
      return result->data =
                 options.allocate != nullptr ? allocate(options, shape) : result->allocate(shape);
    };
  }
  request.keep_alive = result;
  operation.result = result;
}

/// The engine checks it as well, but its text has the C++ name of RONDE_ANY.
void expect_source(const Request& request) {
  const auto ranks = static_cast<int>(ronde::ranks_of(request.set).size());
  if (request.peer == RONDE_ANY || (request.peer >= 0 && request.peer < ranks)) return;
  throw Failure(RONDE_E_USAGE, "peer " + std::to_string(request.peer) +
                                   " is out of range: there are ranks 0 to " +
                                   std::to_string(ranks - 1) + ", or RONDE_ANY");
}

ronde_operation_options options_of(const ronde_operation_options* given) {
  const ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  return given == nullptr ? options : known_part(*given, options, "ronde_operation_options");
}

Operation operation_of(Collective kind, const ronde_tensor* given_in, const ronde_tensor* given_out,
                       const ronde_operation_options* given_options) {
  const std::optional<ronde_tensor> in = tensor_of(given_in);
  const std::optional<ronde_tensor> out = tensor_of(given_out);
  const ronde_operation_options options = options_of(given_options);
  const bool sends = kind == Collective::Send;
  const bool receives = kind == Collective::Recv;
  const bool reduces = kind == Collective::Reduce;
  const bool may_own = kind == Collective::Allgather || kind == Collective::Alltoall ||
                       kind == Collective::Reducescatter;
  expect(in || receives || kind == Collective::Broadcast, "in is NULL");
  expect(out || sends || may_own || reduces, "out is NULL");
  expect(options.allocate == nullptr || (may_own && !out),
         "allocate is for an allgather, alltoall or reducescatter whose out is NULL");
  expect(!in || !receives, "in is not NULL: what a recv receives goes to out");
  expect(!out || !sends, "out is not NULL: what a send sends is in");
  const bool is_alike =
      !in || !out ||
      (in->dtype == out->dtype && in->device == out->device && in->stream == out->stream);
  expect(is_alike, "in and out differ in dtype, device or stream");
  Operation operation{request_of(kind, in ? *in : *out, options)};
  if (in) set_input(operation.request, *in);
  const bool is_root = reduces && ronde::rank_in(operation.request.set) == operation.request.root;
  expect(out || !is_root, "out is NULL, and this rank is the root");
  if (may_own) {
    set_shaped_output(operation, out, options);
  } else if (out && (is_root || !reduces)) {
    set_output(operation, *out);
  }
  if (receives) expect_source(operation.request);
  return operation;
}

ronde_work start(Operation operation) {
  const Collective kind = operation.request.kind;
  const bool is_grouped =
      kind != Collective::Barrier && kind != Collective::Join && !is_point_to_point(kind);
  const auto record = std::make_shared<WorkRecord>(kind, std::move(operation.result));
  const auto group = open_group(operation.request.set);
  if (group && !is_grouped) {
    throw Failure(RONDE_E_UNSUPPORTED, "a " + std::string(to_string(kind)) +
                                           " cannot be part of a group: call it before "
                                           "ronde_group_begin() or after ronde_group_end()");
  }
  return works().insert_if(record, [&] {
    if (group) {
      group->add(std::move(operation.request), record);
    } else {
      record->start({ronde::submit(std::move(operation.request))});
    }
  });
}

int prepare(const char* function, Collective kind, const ronde_tensor* in, const ronde_tensor* out,
            const ronde_operation_options* options, ronde_persistent* persistent) noexcept {
  if (persistent != nullptr) *persistent = nullptr;
  return guarded(function, [&] {
    expect(persistent != nullptr, "persistent is NULL");
    Request request = operation_of(kind, in, out, options).request;
    const auto record =
        std::make_shared<Persistent>(Persistent{.kind = request.kind,
                                                .dtype = request.dtype,
                                                .shape = request.shape,
                                                .set = request.set,
                                                .in = request.input,
                                                .out = request.output,
                                                .stream = request.stream,
                                                .rank_factor = request.rank_factor});
    record->operation = ronde::prepare(std::move(request));
    *persistent = persistent_operations().insert(record);
  });
}

ronde_work start(const Persistent& persistent, const void* in, void* out) {
  if (open_group(persistent.set)) {
    throw Failure(RONDE_E_UNSUPPORTED,
                  "a persistent operation cannot be part of a group: start it before "
                  "ronde_group_begin() or after ronde_group_end()");
  }
  const auto result = std::make_shared<Result>(persistent.dtype, out);
  result->shape = persistent.shape;
  const auto record = std::make_shared<WorkRecord>(persistent.kind, result);
  return works().insert_if(record, [&] {
    record->start({persistent.operation.start({.input = in,
                                               .output = out,
                                               .stream = persistent.stream,
                                               .rank_factor = persistent.rank_factor})});
  });
}

/// Starts what `make` returns.
template <typename Make>
int submit(const char* function, ronde_work* work, const Make& make) noexcept {
  if (work != nullptr) *work = nullptr;
  return guarded(function, [&] {
    expect(work != nullptr, "work is NULL");
    *work = start(make());
  });
}

int submit(const char* function, Collective kind, const ronde_tensor* in, const ronde_tensor* out,
           const ronde_operation_options* options, ronde_work* work) noexcept {
  return submit(function, work, [&] { return operation_of(kind, in, out, options); });
}

}  // namespace
}  // namespace ronde::c

using namespace ronde::c;
using ronde::Collective;

int ronde_allreduce(const ronde_tensor* in, ronde_tensor* out,
                    const ronde_operation_options* options, ronde_work* work) {
  return submit("ronde_allreduce", Collective::Allreduce, in, out, options, work);
}

int ronde_reduce(const ronde_tensor* in, ronde_tensor* out, const ronde_operation_options* options,
                 ronde_work* work) {
  return submit("ronde_reduce", Collective::Reduce, in, out, options, work);
}

int ronde_broadcast(const ronde_tensor* in, ronde_tensor* out,
                    const ronde_operation_options* options, ronde_work* work) {
  return submit("ronde_broadcast", Collective::Broadcast, in, out, options, work);
}

int ronde_allgather(const ronde_tensor* in, ronde_tensor* out,
                    const ronde_operation_options* options, ronde_work* work) {
  return submit("ronde_allgather", Collective::Allgather, in, out, options, work);
}

int ronde_alltoall(const ronde_tensor* in, ronde_tensor* out,
                   const ronde_operation_options* options, ronde_work* work) {
  return submit("ronde_alltoall", Collective::Alltoall, in, out, options, work);
}

int ronde_reducescatter(const ronde_tensor* in, ronde_tensor* out,
                        const ronde_operation_options* options, ronde_work* work) {
  return submit("ronde_reducescatter", Collective::Reducescatter, in, out, options, work);
}

int ronde_send(const ronde_tensor* in, ronde_tensor* out, const ronde_operation_options* options,
               ronde_work* work) {
  return submit("ronde_send", Collective::Send, in, out, options, work);
}

int ronde_recv(const ronde_tensor* in, ronde_tensor* out, const ronde_operation_options* options,
               ronde_work* work) {
  return submit("ronde_recv", Collective::Recv, in, out, options, work);
}

int ronde_allreduce_init(const ronde_tensor* in, ronde_tensor* out,
                         const ronde_operation_options* options, ronde_persistent* persistent) {
  return prepare("ronde_allreduce_init", Collective::Allreduce, in, out, options, persistent);
}

int ronde_broadcast_init(const ronde_tensor* in, ronde_tensor* out,
                         const ronde_operation_options* options, ronde_persistent* persistent) {
  return prepare("ronde_broadcast_init", Collective::Broadcast, in, out, options, persistent);
}

int ronde_start(ronde_persistent handle, const void* in, void* out, ronde_work* work) {
  if (work != nullptr) *work = nullptr;
  return guarded("ronde_start", [&] {
    expect(work != nullptr, "work is NULL");
    const std::shared_ptr<Persistent> persistent = persistent_operations().find(handle);
    const bool is_in_place = persistent->in == persistent->out;
    expect(!is_in_place || (in == nullptr) == (out == nullptr),
           "it was prepared in place: give both in and out, or neither");
    *work = start(*persistent, in != nullptr ? in : persistent->in,
                  out != nullptr ? out : persistent->out);
  });
}

int ronde_persistent_free(ronde_persistent persistent) {
  if (persistent == nullptr) return RONDE_OK;
  return guarded("ronde_persistent_free", [&] { persistent_operations().erase(persistent); });
}

int ronde_barrier(const ronde_operation_options* given, ronde_work* work) {
  return submit("ronde_barrier", work, [&] {
    const ronde_operation_options options = options_of(given);
    Operation operation;
    operation.request.kind = Collective::Barrier;
    if (options.name != nullptr) operation.request.name = options.name;
    operation.request.set = set_of(options.process_set);
    operation.request.caller_orders = options.caller_orders != 0;
    operation.request.timeout = timeout_of(options.timeout_s, "timeout_s");
    return operation;
  });
}

int ronde_join(uint32_t set, ronde_work* work) {
  return submit("ronde_join", work, [&] {
    Operation operation;
    operation.request.kind = Collective::Join;
    operation.request.set = set_of(set);
    return operation;
  });
}
