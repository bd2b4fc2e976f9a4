// SPDX-License-Identifier: Apache-2.0
// Packs and unpacks a model's gradients on a GPU, and sums as many bytes of several ranks, beside
// one copy of as many bytes within it. Grids for links to other GPUs run on the GPU's own memory,
// too: they take no more than that from a link.
//
//   gpu_pack [model]        resnet50 (default), or another that tools/bench/base/gradient_lists.h
//   knows
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/driver/memory.h"
#include "backends/gpu/kernels/kernel_image.h"
#include "backends/gpu/kernels/kernel_set.h"
#include "tests/perf/rounds.h"
#include "tools/bench/base/gradient_lists.h"

namespace {

using namespace ronde;
using namespace ronde::cuda;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 30;
constexpr int kRepeats = 20;  // in a row, for one time

struct Contender {
  std::string name;
  double moved;  ///< bytes read and written, in those of the gradients
  std::function<void()> queue;
  std::vector<double> us = {};
};

void run(const std::string& model) {
  const LoadedDriver driver = load_driver(vendor::dynamic_symbols());
  if (!driver.api) throw Error("there is no GPU: " + driver.problem);
  const auto context = std::make_shared<DeviceContext>(driver.api, 0);
  KernelSet kernels(context, kernel_image());
  Stream stream(context);

  const tool::GradientList& list = tool::gradient_list(model);
  const std::size_t total = list.elements();
  std::vector<DeviceMemory> tensors;
  const DeviceMemory buffer(context, total * sizeof(float));
  const DeviceMemory other(context, total * sizeof(float));
  std::vector<KernelSet::Move> pack;
  std::vector<KernelSet::Move> unpack;
  std::size_t at = 0;
  for (const std::size_t count : list.tensors) {
    tensors.emplace_back(context, count * sizeof(float));
    void* const tensor = reinterpret_cast<void*>(tensors.back().address());
    void* const place = reinterpret_cast<void*>(buffer.address() + at);
    pack.push_back({tensor, place, count});
    unpack.push_back({place, tensor, count});
    at += count * sizeof(float);
  }
  const KernelSet::How averaged{.scaling = {0.5, 1.0}, .canonical = true};
  const KernelSet::How narrowed{.from = DataType::F32, .to = DataType::F16};
  std::vector<Contender> contenders = {
      {"one copy within the GPU", 2.0,
       [&] { stream.copy(other.address(), buffer.address(), at, "copying"); }},
      {"pack", 2.0, [&] { kernels.move(stream, pack, {}); }},
      {"unpack, averaged", 2.0, [&] { kernels.move(stream, unpack, averaged); }},
      {"pack to f16", 1.5, [&] { kernels.move(stream, pack, narrowed); }},
      {"pack, grid of a link", 2.0,
       [&] { kernels.move(stream, pack, {.traffic = Traffic::Link}); }}};
  for (const Traffic traffic : {Traffic::Local, Traffic::Link}) {
    for (const std::size_t ranks : {2U, 8U}) {
      // The buffer is that of all ranks, one behind the other.
      contenders.push_back(
          {"sum of " + std::to_string(ranks) + (traffic == Traffic::Link ? ", grid of a link" : ""),
           1.0 + 1.0 / static_cast<double>(ranks), [&, ranks, traffic] {
             const std::size_t each = total / ranks / 4 * 4;
             std::vector<DevicePointer> inputs;
             for (std::size_t i = 0; i < ranks; ++i) {
               inputs.push_back(buffer.address() + i * each * sizeof(float));
             }
             kernels.reduce(stream, other.address(), inputs, each, {}, traffic);
           }});
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Contender& contender : contenders) {
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < kRepeats; ++i) contender.queue();
      context->call("waiting", &DriverApi::stream_synchronize, stream.handle());
      const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
      contender.us.push_back(took.count() / kRepeats);
    }
  }
  const double copy = perf::median(contenders.front().us);
  std::printf("%s: %zu gradients, %.1f MiB, on %s\n", model.c_str(), list.tensors.size(),
              static_cast<double>(at) / (1 << 20), context->gpu().name.c_str());
  for (const Contender& contender : contenders) {
    const double us = perf::median(contender.us);
    const double rate = contender.moved * static_cast<double>(at) / us / 1e3;
    std::printf("  %-26s %8.1f us  %5.2f x the copy  %7.1f GB/s\n", contender.name.c_str(), us,
                us / copy, rate);
  }
}

}  // namespace

int main(int count, char** arguments) try {
  run(count > 1 ? arguments[1] : "resnet50");
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_pack: %s\n", error.what());
  return 1;
}
