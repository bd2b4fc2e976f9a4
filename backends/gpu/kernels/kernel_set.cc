// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/kernels/kernel_set.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "backends/gpu/kernels/kernel_image.h"
#include "backends/gpu/kernels/kernel_list.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// Each thread has 64 bytes in flight from other GPUs, 32 blocks have 1 MiB: more than a link's
/// bandwidth times its latency (NVLink 4: 450 GB/s, about 2 us). They take a quarter of an H100's
/// multiprocessors.
constexpr std::uint64_t kLinkBlocks = 32;

kernels::Operation operation_of(ReduceOp op) {
  if (op == ReduceOp::Sum) return kernels::Operation::Sum;
  if (op == ReduceOp::Min) return kernels::Operation::Min;
  if (op == ReduceOp::Max) return kernels::Operation::Max;
  if (op == ReduceOp::Product) return kernels::Operation::Product;
  throw Error("no kernel reduces with " + std::string(to_string(op)));
}

bool is_aligned(DevicePointer address, DataType dtype) {
  return address % size_of(dtype) == 0;
}

void require_aligned(DevicePointer address, DataType dtype) {
  if (is_aligned(address, dtype)) return;
  std::array<char, 19> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", address);
  throw Error("a tensor of " + std::string(to_string(dtype)) + " lies at " + text.data() +
              " on a GPU, which computes only with elements at multiples of their " +
              std::to_string(size_of(dtype)) + " bytes: let it begin at one");
}

/// Whether the moves copy bits.
bool keeps_bits(std::span<const KernelSet::Move> moves, const KernelSet::How& how) {
  const bool normalises = how.from == DataType::Bool || (how.canonical && is_floating(how.from));
  const auto has_source = [](const KernelSet::Move& move) { return move.source != nullptr; };
  return how.from == how.to && how.scaling.is_identity() && !normalises &&
         std::ranges::all_of(moves, has_source);
}

bool are_aligned(std::span<const KernelSet::Move> moves, const KernelSet::How& how) {
  return std::ranges::all_of(moves, [&](const auto& move) {
    return is_aligned(address_of(move.source), how.from) &&
           is_aligned(address_of(move.target), how.to);
  });
}

}  // namespace

KernelSet::KernelSet(std::shared_ptr<const DeviceContext> context, const void* image)
    : context_(std::move(context)) {
  if (image == nullptr) throw Error(kNoKernels);
  ModuleHandle module = nullptr;
  context_->call("loading Ronde's kernels onto GPU " + std::to_string(context_->index()),
                 &DriverApi::module_load, &module, image);
  module_ = {context_, module};
#define RONDE_LOAD(name, ...) load(#name);
  RONDE_COPY_KERNELS(RONDE_LOAD)
  RONDE_REDUCE_KERNELS(RONDE_LOAD)
}

void KernelSet::move(const Stream& stream, std::span<const Move> moves, const How& how) {
  const bool only_bits = keeps_bits(moves, how);
  if (only_bits && !are_aligned(moves, how)) {
    std::vector<Move> bytes(moves.begin(), moves.end());
    for (Move& each : bytes) each.count *= size_of(how.from);
    return move(stream, bytes, {.from = DataType::U8, .to = DataType::U8, .traffic = how.traffic});
  }
  const std::string name = only_bits ? "ronde_move_" + std::to_string(size_of(how.from))
                                     : "ronde_copy_" + std::string(to_string(how.from)) + "_" +
                                           std::string(to_string(how.to));
  const std::size_t width = std::max(size_of(how.from), size_of(how.to));
  kernels::CopyArguments table{};
  table.scale = {how.scaling.factor, how.scaling.divisor};
  table.neutral_of = operation_of(how.op);
  const auto launch_table = [&] { launch(stream, name, table.tiles, how.traffic, &table); };
  for (const Move& each : moves) {
    if (each.count == 0) continue;
    require_aligned(address_of(each.source), how.from);
    require_aligned(address_of(each.target), how.to);
    for (std::size_t done = 0; done < each.count;) {
      if (table.count == kernels::kMostSegments) {
        launch_table();
        table.count = table.tiles = 0;
      }
      const std::size_t count = std::min<std::size_t>(each.count - done, kernels::kMostElements);
      table.segments[table.count++] = {
          each.source != nullptr ? at(each.source, done, size_of(how.from)) : nullptr,
          at(each.target, done, size_of(how.to)), static_cast<std::uint32_t>(count), table.tiles};
      table.tiles += static_cast<std::uint32_t>(kernels::tiles_of(count, width));
      done += count;
    }
  }
  if (table.count > 0) launch_table();
}

void KernelSet::reduce(const Stream& stream, DevicePointer output,
                       std::span<const DevicePointer> inputs, std::size_t count,
                       const Reduction& reduction, Traffic traffic) {
  if (count == 0) return;
  const bool has_pointers = inputs.size() <= kernels::kMostInputs;
  kernels::ReductionArguments how{};
  how.stride = has_pointers ? 0 : inputs[1] - inputs[0];
  require_aligned(output, reduction.dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_aligned(inputs[i], reduction.dtype);
    if (i == 0 || has_pointers) how.inputs[i] = pointer_to(inputs[i]);
    if (has_pointers || (how.stride > 0 && inputs[i] == inputs[0] + i * how.stride)) continue;
    throw Error("a kernel takes " + std::to_string(kernels::kMostInputs) +
                " inputs at most, or more at equal distances, not " +
                std::to_string(inputs.size()));
  }
  how.input_count = static_cast<std::uint32_t>(inputs.size());
  how.output = writable(output);
  how.count = count;
  how.operation = operation_of(reduction.op);
  how.prescale = reduction.prescale;
  how.final_scale = {reduction.final.factor, reduction.final.divisor};
  launch(stream, "ronde_reduce_" + std::string(to_string(reduction.dtype)),
         kernels::tiles_of(count, size_of(reduction.dtype)), traffic, &how);
}

void KernelSet::load(const char* name) {
  auto& [function, resident] = kernels_[name];
  context_->call(std::string("looking for the kernel ") + name, &DriverApi::module_function,
                 &function, module_.get(), name);
  const std::string doing = std::string("loading the kernel ") + name;
  int of_multiprocessor = 0;
  context_->call(doing, &DriverApi::occupancy, &of_multiprocessor, function,
                 static_cast<int>(kernels::kThreads), std::size_t{0});
  resident = static_cast<std::uint64_t>(of_multiprocessor) *
             static_cast<std::uint64_t>(context_->multiprocessors());
  if (context_->api().function_load) context_->call(doing, &DriverApi::function_load, function);
}

void KernelSet::launch(const Stream& stream, const std::string& name, std::uint64_t tiles,
                       Traffic traffic, void* arguments) {
  const auto& [function, resident] = kernels_.at(name);
  const std::uint64_t blocks = std::min(tiles, traffic == Traffic::Link ? kLinkBlocks : resident);
  context_->call("launching " + name, &DriverApi::launch, function, static_cast<unsigned>(blocks),
                 1U, 1U, kernels::kThreads, 1U, 1U, 0U, stream.handle(), &arguments,
                 static_cast<void**>(nullptr));
}

}  // namespace ronde::cuda
