// SPDX-License-Identifier: Apache-2.0
// The functions that start an operation.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "errors.h"
#include "groups.h"
#include "ronde/ronde.h"
#include "ronde/ronde_c.h"
#include "work_table.h"

namespace ronde::c {
namespace {

static_assert(static_cast<int>(DataType::U8) == RONDE_U8);
static_assert(static_cast<int>(DataType::I8) == RONDE_I8);
static_assert(static_cast<int>(DataType::I16) == RONDE_I16);
static_assert(static_cast<int>(DataType::I32) == RONDE_I32);
static_assert(static_cast<int>(DataType::I64) == RONDE_I64);
static_assert(static_cast<int>(DataType::F16) == RONDE_F16);
static_assert(static_cast<int>(DataType::BF16) == RONDE_BF16);
static_assert(static_cast<int>(DataType::F32) == RONDE_F32);
static_assert(static_cast<int>(DataType::F64) == RONDE_F64);
static_assert(static_cast<int>(DataType::Bool) == RONDE_BOOL);
static_assert(kDataTypeCount == RONDE_BOOL + 1);
static_assert(static_cast<int>(ReduceOp::Sum) == RONDE_SUM);
static_assert(static_cast<int>(ReduceOp::Average) == RONDE_AVERAGE);
static_assert(static_cast<int>(ReduceOp::Min) == RONDE_MIN);
static_assert(static_cast<int>(ReduceOp::Max) == RONDE_MAX);
static_assert(static_cast<int>(ReduceOp::Product) == RONDE_PRODUCT);
static_assert(static_cast<int>(ReduceOp::Adasum) == RONDE_ADASUM);
static_assert(kReduceOpCount == RONDE_ADASUM + 1);
static_assert(kAnyRank == RONDE_ANY);
static_assert(kGlobalSet.id == RONDE_ALL_RANKS);

/// What the functions for all operations have in common.
struct Common {
  const char* name = nullptr;
  int dtype = RONDE_U8;
  int device = RONDE_CPU;
  void* stream = nullptr;
  std::uint32_t set = RONDE_ALL_RANKS;
};

struct Operation {
  Request request;
  std::shared_ptr<Result> result = nullptr;
};

Operation make_operation(Collective kind, const Common& common) {
  expect(common.dtype >= 0 && common.dtype < static_cast<int>(kDataTypeCount),
         "dtype is none that there is");
  expect(common.device >= RONDE_CPU, "device is none that there is");
  expect(common.device != RONDE_CPU || common.stream == nullptr,
         "stream is for buffers on a GPU, and device is RONDE_CPU");
  Operation operation;
  operation.request.kind = kind;
  if (common.name != nullptr) operation.request.name = common.name;
  operation.request.dtype = static_cast<DataType>(common.dtype);
  operation.request.set.id = common.set;
  if (common.device != RONDE_CPU) {
    operation.request.device = {.kind = DeviceKind::Cuda, .index = common.device};
    operation.request.stream = common.stream;
  }
  return operation;
}

void set_reduction(Request& request, int op, double prescale, double postscale) {
  expect(op >= 0 && op < static_cast<int>(kReduceOpCount), "op is none that there is");
  request.op = static_cast<ReduceOp>(op);
  request.prescale = prescale;
  request.postscale = postscale;
}

// Extents below 0, and shapes of too many elements, are for the engine to refuse: it tells the
// other ranks, which wait for this one.
std::vector<std::int64_t> shape_of(const std::int64_t* shape, int dims) {
  expect(dims >= 0 && dims <= RONDE_MAX_DIMS, "dims is not among 0 to RONDE_MAX_DIMS");
  expect(dims == 0 || shape != nullptr, "shape is NULL");
  return {shape, shape + dims};
}

bool has_elements(const std::vector<std::int64_t>& shape) {
  return std::all_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent > 0; });
}

/// The buffers of an operation whose result is as large as its input.
void set_buffers(Operation& operation, const void* in, void* out, std::int64_t count) {
  Request& request = operation.request;
  request.shape = {count};
  request.input = in;
  request.output = out;
  operation.result = std::make_shared<Result>(request.dtype, out);
  operation.result->shape = request.shape;
}

/// Those of one whose result is shaped by what the ranks bring.
void set_shaped_buffers(Operation& operation, const void* in, std::vector<std::int64_t> shape,
                        void* out) {
  Request& request = operation.request;
  expect(in != nullptr || !has_elements(shape), "in is NULL");
  request.shape = std::move(shape);
  request.input = in;
  request.output = out;
  const auto result = std::make_shared<Result>(request.dtype, out);
  const bool is_here = request.device.kind == DeviceKind::Cpu;
  request.allocate_output = [result, is_here](const std::vector<std::int64_t>& result_shape) {
    result->shape = result_shape;
    if (result->data == nullptr && !is_here && has_elements(result_shape)) {
      throw UsageError(
          "out is NULL, which is for results on the CPU: on a GPU give memory for the result");
    }
    if (result->data == nullptr) result->data = result->allocate(result_shape);
    return result->data;
  };
  request.keep_alive = result;
  operation.result = result;
}

/// The engine would say so, too, but with the C++ name of RONDE_ANY.
void expect_source(int peer, std::uint32_t set) {
  const auto ranks = static_cast<int>(ronde::ranks_of({set}).size());
  if (peer == RONDE_ANY || (peer >= 0 && peer < ranks)) return;
  throw Failure(RONDE_E_USAGE, "peer " + std::to_string(peer) +
                                   " is out of range: there are ranks 0 to " +
                                   std::to_string(ranks - 1) + ", or RONDE_ANY");
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
  return WorkTable::instance().insert_if(record, [&] {
    if (group) {
      group->add(std::move(operation.request), record);
    } else {
      record->start({ronde::submit(std::move(operation.request))});
    }
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

}  // namespace
}  // namespace ronde::c

namespace {

using namespace ronde::c;
using ronde::Collective;

}  // namespace

int ronde_allreduce(const char* name, const void* in, void* out, int64_t count, int dtype, int op,
                    double prescale, double postscale, int device, void* stream, uint32_t set,
                    ronde_work* work) {
  return submit("ronde_allreduce", work, [&] {
    Operation operation = make_operation(Collective::Allreduce, {name, dtype, device, stream, set});
    set_reduction(operation.request, op, prescale, postscale);
    expect(in != nullptr || count <= 0, "in is NULL");
    expect(out != nullptr || count <= 0, "out is NULL");
    set_buffers(operation, in, out, count);
    return operation;
  });
}

int ronde_broadcast(const char* name, void* buffer, int64_t count, int dtype, int root, int device,
                    void* stream, uint32_t set, ronde_work* work) {
  return submit("ronde_broadcast", work, [&] {
    Operation operation = make_operation(Collective::Broadcast, {name, dtype, device, stream, set});
    expect(buffer != nullptr || count <= 0, "buffer is NULL");
    operation.request.root = root;
    set_buffers(operation, buffer, buffer, count);
    return operation;
  });
}

int ronde_allgather(const char* name, const void* in, const int64_t* shape, int dims, int dtype,
                    void* out, int device, void* stream, uint32_t set, ronde_work* work) {
  return submit("ronde_allgather", work, [&] {
    Operation operation = make_operation(Collective::Allgather, {name, dtype, device, stream, set});
    set_shaped_buffers(operation, in, shape_of(shape, dims), out);
    return operation;
  });
}

int ronde_alltoall(const char* name, const void* in, const int64_t* shape, int dims, int dtype,
                   const int64_t* splits, void* out, int device, void* stream, uint32_t set,
                   ronde_work* work) {
  return submit("ronde_alltoall", work, [&] {
    Operation operation = make_operation(Collective::Alltoall, {name, dtype, device, stream, set});
    set_shaped_buffers(operation, in, shape_of(shape, dims), out);
    if (splits != nullptr) {
      const std::size_t ranks = ronde::ranks_of({set}).size();
      operation.request.splits.assign(splits, splits + ranks);
    }
    return operation;
  });
}

int ronde_reducescatter(const char* name, const void* in, const int64_t* shape, int dims, int dtype,
                        int op, double prescale, double postscale, void* out, int device,
                        void* stream, uint32_t set, ronde_work* work) {
  return submit("ronde_reducescatter", work, [&] {
    Operation operation =
        make_operation(Collective::Reducescatter, {name, dtype, device, stream, set});
    set_reduction(operation.request, op, prescale, postscale);
    set_shaped_buffers(operation, in, shape_of(shape, dims), out);
    return operation;
  });
}

int ronde_send(const void* buffer, int64_t count, int dtype, int peer, int64_t tag, int device,
               void* stream, uint32_t set, ronde_work* work) {
  return submit("ronde_send", work, [&] {
    Operation operation = make_operation(Collective::Send, {nullptr, dtype, device, stream, set});
    expect(buffer != nullptr || count <= 0, "buffer is NULL");
    operation.request.shape = {count};
    operation.request.input = buffer;
    operation.request.peer = peer;
    operation.request.tag = tag;
    return operation;
  });
}

int ronde_recv(void* buffer, int64_t count, int dtype, int peer, int64_t tag, int device,
               void* stream, uint32_t set, ronde_work* work) {
  return submit("ronde_recv", work, [&] {
    Operation operation = make_operation(Collective::Recv, {nullptr, dtype, device, stream, set});
    expect(buffer != nullptr || count <= 0, "buffer is NULL");
    set_buffers(operation, nullptr, buffer, count);
    expect_source(peer, set);
    operation.request.peer = peer;
    operation.request.tag = tag;
    return operation;
  });
}

int ronde_barrier(uint32_t set, ronde_work* work) {
  return submit("ronde_barrier", work,
                [&] { return make_operation(Collective::Barrier, {.set = set}); });
}

int ronde_join(uint32_t set, ronde_work* work) {
  return submit("ronde_join", work, [&] { return make_operation(Collective::Join, {.set = set}); });
}
