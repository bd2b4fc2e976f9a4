// SPDX-License-Identifier: Apache-2.0
// `ronde check` with more transports: each harms messages from rank 0 to the last rank in its way,
// or is late with them.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/compose.h"
#include "tests/support/fakes/wrapped_backend.h"
#include "tools/check/check.h"

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::span<std::byte>;

constexpr std::chrono::milliseconds kLate{10};

/// Called with what has arrived.
using Harm = std::function<void(Bytes)>;

const std::map<std::string, Harm>& harms() {
  static const std::map<std::string, Harm> all = {
      {"late", [](Bytes) {}},
      {"flipped",
       [](Bytes bytes) {
         if (bytes.size() > 20001) bytes[20001] ^= std::byte{0x10};
       }},
      {"swapped",
       [](Bytes bytes) {
         if (bytes.size() < 4096) return;
         std::swap_ranges(bytes.begin(), bytes.begin() + 512, bytes.begin() + 2048);
       }},
      {"shifted",
       [](Bytes bytes) {
         if (bytes.size() == 33) std::rotate(bytes.begin(), bytes.begin() + 1, bytes.end());
       }},
      {"repeated",
       [last = std::vector<std::byte>()](Bytes bytes) mutable {
         const std::vector<std::byte> now(bytes.begin(), bytes.end());
         if (last.size() == now.size() && now.size() == 1057)
           std::ranges::copy(last, bytes.begin());
         last = now;
       }},
  };
  return all;
}

class PlantedOperation final : public ronde::Operation {
 public:
  PlantedOperation(std::unique_ptr<Operation> inner, std::function<void()> at_end, bool is_late)
      : inner_(std::move(inner)), at_end_(std::move(at_end)), is_late_(is_late) {}

  bool poll() override {
    if (!arrived_) {
      if (!inner_->poll()) return false;
      arrived_ = Clock::now();
    }
    if (is_late_ && Clock::now() < *arrived_ + kLate) return false;
    at_end_();
    return true;
  }

 private:
  const std::unique_ptr<Operation> inner_;
  const std::function<void()> at_end_;
  const bool is_late_;
  std::optional<Clock::time_point> arrived_;
};

class PlantedBackend final : public ronde::test::WrappedBackend {
 public:
  PlantedBackend(std::string_view name, std::unique_ptr<Backend> inner, bool harms)
      : WrappedBackend(name, std::move(inner)), name_(name), harms_(harms) {}

  std::unique_ptr<ronde::Operation> recv(const ronde::RecvCall& call) override {
    std::unique_ptr<ronde::Operation> right = WrappedBackend::recv(call);
    if (!harms_ || call.peer != 0) return right;
    const Bytes bytes(static_cast<std::byte*>(call.output), call.count);
    return std::make_unique<PlantedOperation>(
        std::move(right), [this, bytes] { harm_(bytes); }, name_ == "late");
  }

 private:
  std::unique_ptr<ronde::Operation> wrap(Start start, void*) override { return start(); }

  const std::string name_;
  const bool harms_;
  const Harm harm_ = harms().at(name_);
};

}  // namespace

int main(int argc, char** argv) {
  // Over the backend that is always there: by MPI, or of one process.
  const ronde::BackendRegistry backends = ronde::compose_built_in({}).backends;
  const auto mpi = backends.find("mpi");
  const ronde::BackendFactory& right = mpi != backends.end() ? mpi->second : backends.at("shm");
  ronde::BackendRegistry wrong;
  for (const auto& [fault, harm] : harms()) {
    ronde::BackendFactory factory = right;
    factory.create = [name = fault, create = right.create](ronde::BackendContext& context) {
      const bool is_last = context.topology->rank == context.topology->size - 1;
      return std::make_unique<PlantedBackend>(name, create(context), is_last);
    };
    wrong.emplace(fault, factory);
  }
  CLI::App app("`ronde check` with transports that are wrong");
  int exit_code = EXIT_SUCCESS;
  ronde::tool::add_check(app, exit_code, wrong);
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
