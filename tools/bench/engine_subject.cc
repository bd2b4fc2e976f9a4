// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/engine_subject.h"

#include <chrono>
#include <thread>
#include <utility>

#include "ronde/ronde.h"

namespace ronde::tool {
namespace {

class Engine final : public Subject {
 public:
  explicit Engine(DeviceKind device) : device_(device) {
    if (!backend().empty()) return;
    throw UsageError("--device " + std::string(to_string(device)) +
                     ": no backend serves such buffers here; `ronde info` says what there is");
  }

  std::string backend() const override { return runtime_.backend_name(device_); }
  void run(Request request) override { ronde::run(std::move(request)); }

  void settle() override {
    constexpr std::chrono::seconds kPatience{10};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!runtime_.asleep()) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw Error("rank " + std::to_string(runtime_.topology().rank) +
                  ": the engine, which has nothing to do, did not go to sleep within 10 s");
    }
  }

 private:
  const DeviceKind device_;
  Runtime& runtime_ = default_runtime();
};

}  // namespace

std::unique_ptr<Subject> make_engine(DeviceKind device) {
  return std::make_unique<Engine>(device);
}

}  // namespace ronde::tool
