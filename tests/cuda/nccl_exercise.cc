// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "gpu_exercise.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace ronde::test {
namespace {

constexpr std::size_t kCount = 1000;

struct Row {
  Collective kind;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  /// Of the backend: it grows, as it counts how the row is carried out.
  const char* counter = "direct_chunks";
};

const Row kRows[] = {
    {Collective::Allreduce, DataType::F32, ReduceOp::Sum, 1.0, 3.0},
    {Collective::Allreduce, DataType::F64, ReduceOp::Product, 0.5, 1.0, "packed_chunks"},
    {Collective::Allreduce, DataType::I32, ReduceOp::Max, 2.0, 3.0, "packed_chunks"},
    {Collective::Allreduce, DataType::F16, ReduceOp::Sum, 0.5, 1.0, "chunks_in_order"},
    {Collective::Allreduce, DataType::F32, ReduceOp::Min, 1.0, -2.0, "chunks_in_order"},
    {Collective::Allreduce, DataType::BF16, ReduceOp::Average, 2.0, 0.25, "chunks_in_order"},
    {Collective::Reducescatter, DataType::F32, ReduceOp::Average, 0.25, 8.0, "collectives"},
    {Collective::Reducescatter, DataType::I16, ReduceOp::Sum, 3.0, 1.0, "collectives"},
    {Collective::Broadcast},
    {Collective::Allgather},
    {Collective::Alltoall, DataType::I64},
};

Bytes bytes_of(const TensorValues& values) {
  Bytes bytes(values.bytes());
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Numbers from 1 on that all types have, also scaled.
TensorValues numbers(DataType dtype, double scale) {
  TensorValues values(dtype, kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    values.set(i, static_cast<double>(i % 16 + 1) * 4 * scale);
  return values;
}

void check_row(Runtime& runtime, ProgramGpu& gpu, const Row& row, bool in_place) {
  const Bytes input = bytes_of(numbers(row.dtype, 1.0));
  GpuTensor from(gpu, input);
  const GpuTensor to(gpu, Bytes(input.size(), std::byte{0x5a}));
  const GpuTensor& result = in_place ? from : to;
  Request request;
  request.kind = row.kind;
  request.dtype = row.dtype;
  request.op = row.op;
  request.prescale = row.prescale;
  request.postscale = row.postscale;
  request.shape = {static_cast<std::int64_t>(kCount)};
  request.input = from.data();
  request.output = result.data();
  request.device = {.kind = DeviceKind::Cuda, .index = gpu.context->index()};
  request.stream = gpu.stream.handle();
  const std::uint64_t before = counter_of(runtime, "nccl", row.counter);
  runtime.run(std::move(request));
  const std::string what = std::string(to_string(row.kind)) + " of " +
                           std::string(to_string(row.dtype)) + ", " +
                           std::string(to_string(row.op)) + (in_place ? ", in place" : "");
  check(result.read() == bytes_of(numbers(row.dtype, row.prescale * row.postscale)), what);
  check(in_place || from.read() == input, "the input of " + what);
  check(counter_of(runtime, "nccl", row.counter) > before, row.counter + (" of " + what));
}

}  // namespace

void exercise_nccl_alone(Runtime& runtime, ProgramGpu& gpu) {
  const std::uint64_t before = counter_of(runtime, "nccl", "collectives");
  for (const Row& row : kRows) {
    check_row(runtime, gpu, row, false);
    if (row.kind != Collective::Alltoall) check_row(runtime, gpu, row, true);
  }
  check(counter_of(runtime, "nccl", "collectives") == before + 2 * std::size(kRows) - 1, "by NCCL");
  check(counter_of(runtime, "nccl", "communicators") > 0, "connected");
}

}  // namespace ronde::test
