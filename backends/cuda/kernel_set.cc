// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernel_set.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backends/cuda/addresses.h"
#include "backends/cuda/kernels/flags.h"
#include "backends/cuda/kernels/kernel_list.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

constexpr const char* kSignal = "ronde_signal";
constexpr const char* kAwait = "ronde_await";
/// Each thread has 64 bytes or more from other GPUs on the way, 32 blocks have 1 MiB: more than a
/// link's bandwidth times its latency (NVLink 4: 450 GB/s, about 2 us). They take a quarter of the
/// multiprocessors of an H100.
constexpr std::uint64_t kLinkBlocks = 32;
/// As many as can be resident at the same time.
constexpr std::uint64_t kBlocksOfMultiprocessor = 2048 / kernels::kThreads;

std::string copy_name(DataType from, DataType to) {
  return "ronde_copy_" + std::string(to_string(from)) + "_" + std::string(to_string(to));
}

kernels::Operation operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Min:
      return kernels::Operation::Min;
    case ReduceOp::Max:
      return kernels::Operation::Max;
    case ReduceOp::Product:
      return kernels::Operation::Product;
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return kernels::Operation::Sum;
    case ReduceOp::Adasum:
      break;
  }
  throw Error("no kernel reduces with " + std::string(to_string(op)));
}

void require_few(std::span<const DevicePointer> addresses, const std::string& what) {
  if (addresses.size() <= kernels::kMostInputs) return;
  throw Error("a kernel takes " + std::to_string(kernels::kMostInputs) + " " + what +
              " at most, not " + std::to_string(addresses.size()));
}

kernels::FlagArguments flag_arguments(std::span<const DevicePointer> flags, std::uint32_t value) {
  require_few(flags, "flags");
  kernels::FlagArguments how{};
  for (std::size_t i = 0; i < flags.size(); ++i) {
    how.flags[i] = reinterpret_cast<std::uint32_t*>(flags[i]);
  }
  how.count = static_cast<std::uint32_t>(flags.size());
  how.value = value;
  return how;
}

}  // namespace

KernelSet::KernelSet(std::shared_ptr<const DeviceContext> context, const void* image)
    : context_(std::move(context)) {
  if (image == nullptr) {
    throw Error(
        "this build of Ronde has no kernels for GPUs, as nvcc was not found. Build it with "
        "the CUDA Toolkit 12 or 13");
  }
  context_->call("loading Ronde's kernels onto GPU " + std::to_string(context_->index()),
                 &DriverApi::module_load, &module_, image);
  try {
#define RONDE_LOAD(name, ...) load(#name);
    RONDE_COPY_KERNELS(RONDE_LOAD)
    RONDE_REDUCE_KERNELS(RONDE_LOAD)
    load(kSignal);
    load(kAwait);
  } catch (...) {
    context_->release(context_->api().module_unload, module_);
    throw;
  }
}

KernelSet::~KernelSet() {
  context_->release(context_->api().module_unload, module_);
}

bool KernelSet::can_copy(DataType from, DataType to) noexcept {
  const auto is_full = [](DataType dtype) {
    return dtype == DataType::F32 || dtype == DataType::F64;
  };
  return from == to || (is_half(from) && is_full(to)) || (is_full(from) && is_half(to));
}

void KernelSet::move(const Stream& stream, std::span<const Move> moves, const How& how) {
  const std::size_t width = std::max(size_of(how.from), size_of(how.to));
  kernels::CopyArguments table{};
  for (const Move& move : moves) {
    const auto* const source = static_cast<const std::byte*>(move.source);
    auto* const target = static_cast<std::byte*>(move.target);
    for (std::size_t done = 0; done < move.count;) {
      if (table.count == kernels::kMostSegments) {
        copy(stream, how, table);
        table = {};
      }
      const std::size_t count = std::min<std::size_t>(move.count - done, kernels::kMostElements);
      table.segments[table.count++] = {
          source != nullptr ? source + done * size_of(how.from) : nullptr,
          target + done * size_of(how.to), static_cast<std::uint32_t>(count), table.tiles};
      table.tiles += static_cast<std::uint32_t>(kernels::tiles_of(count, width));
      done += count;
    }
  }
  if (table.count > 0) copy(stream, how, table);
}

void KernelSet::copy(const Stream& stream, const How& how, kernels::CopyArguments& table) {
  table.scale = {how.scaling.factor, how.scaling.divisor};
  table.neutral_of = operation_of(how.op);
  const bool fills = std::any_of(table.segments, table.segments + table.count,
                                 [](const auto& segment) { return segment.source == nullptr; });
  const bool normalises = how.from == DataType::Bool || (how.canonical && is_floating(how.from));
  const bool moves = how.from == how.to && how.scaling.is_identity() && !normalises && !fills;
  std::array<void*, 1> arguments = {&table};
  launch(stream,
         moves ? "ronde_move_" + std::to_string(size_of(how.from)) : copy_name(how.from, how.to),
         blocks_for(table.tiles, how.traffic), arguments);
}

void KernelSet::reduce(const Stream& stream, DevicePointer output,
                       std::span<const DevicePointer> inputs, std::size_t count,
                       const Reduction& reduction, Traffic traffic) {
  require_few(inputs, "inputs");
  kernels::ReductionArguments how{};
  std::transform(inputs.begin(), inputs.end(), how.inputs, pointer_to);
  how.input_count = static_cast<std::uint32_t>(inputs.size());
  reduce(stream, output, how, count, reduction, traffic);
}

void KernelSet::reduce(const Stream& stream, DevicePointer output, const Strided& inputs,
                       std::size_t count, const Reduction& reduction) {
  kernels::ReductionArguments how{};
  how.inputs[0] = pointer_to(inputs.first);
  how.stride = inputs.bytes;
  how.input_count = static_cast<std::uint32_t>(inputs.count);
  reduce(stream, output, how, count, reduction, Traffic::Local);
}

void KernelSet::reduce(const Stream& stream, DevicePointer output, kernels::ReductionArguments how,
                       std::size_t count, const Reduction& reduction, Traffic traffic) {
  if (count == 0) return;
  how.output = writable(output);
  how.count = count;
  how.operation = operation_of(reduction.op);
  how.prescale = {reduction.prescale, 1.0};
  how.final_scale = {reduction.final.factor, reduction.final.divisor};
  std::array<void*, 1> arguments = {&how};
  launch(stream, "ronde_reduce_" + std::string(to_string(reduction.dtype)),
         blocks_for(kernels::tiles_of(count, size_of(reduction.dtype)), traffic), arguments);
}

void KernelSet::signal(const Stream& stream, std::span<const DevicePointer> flags,
                       std::uint32_t value) {
  if (flags.empty()) return;
  kernels::FlagArguments how = flag_arguments(flags, value);
  std::array<void*, 1> arguments = {&how};
  launch(stream, kSignal, 1, arguments);
}

void KernelSet::await(const Stream& stream, std::span<const DevicePointer> flags,
                      std::uint32_t value, DevicePointer released) {
  if (flags.empty()) return;
  kernels::FlagArguments how = flag_arguments(flags, value);
  how.released = reinterpret_cast<const std::uint32_t*>(released);
  how.limit_ns = std::chrono::nanoseconds(kAwaitLimit).count();
  std::array<void*, 1> arguments = {&how};
  launch(stream, kAwait, 1, arguments);
}

void KernelSet::load(const char* name) {
  FunctionHandle& function = functions_[name];
  context_->call(std::string("looking for the kernel ") + name, &DriverApi::module_function,
                 &function, module_, name);
  if (!context_->api().function_load) return;
  context_->call(std::string("loading the kernel ") + name, &DriverApi::function_load, function);
}

unsigned KernelSet::blocks_for(std::uint64_t tiles, Traffic traffic) const {
  const auto multiprocessors = static_cast<std::uint64_t>(context_->multiprocessors());
  const std::uint64_t most =
      traffic == Traffic::Link ? kLinkBlocks : multiprocessors * kBlocksOfMultiprocessor;
  return static_cast<unsigned>(std::min(tiles, most));
}

void KernelSet::launch(const Stream& stream, const std::string& name, unsigned blocks,
                       std::span<void*> arguments) {
  context_->call("launching " + name, &DriverApi::launch, functions_.at(name), blocks, 1U, 1U,
                 kernels::kThreads, 1U, 1U, 0U, stream.handle(), arguments.data(),
                 static_cast<void**>(nullptr));
}

}  // namespace ronde::cuda
