// SPDX-License-Identifier: Apache-2.0
// What NVML says of a rank's GPU: its utilization, its memory and its NVLinks.
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "backends/gpu/driver/gpu_reader.h"
#include "tests/support/fakes/fake_nvml.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/gpu/nccl_ranks.h"
#include "tests/support/harness/captured_errors.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using cuda::GpuReader;
using cuda::NvmlFieldValue;

static_assert(sizeof(NvmlFieldValue) == 40 && offsetof(NvmlFieldValue, timestamp_us) == 8 &&
              offsetof(NvmlFieldValue, type) == 24 && offsetof(NvmlFieldValue, result) == 28 &&
              offsetof(NvmlFieldValue, value) == 32);
static_assert(sizeof(cuda::NvmlUtilization) == 8 && sizeof(cuda::NvmlMemory) == 24);

const std::array<std::string, 2>& kUuids = FakeNvml::kUuids;

FakeNvml& machine = FakeNvml::instance();

vendor::SymbolLookup library() {
  machine = {};
  return library_with(fake_nvml());
}

}  // namespace

TEST_CASE("cuda gpu reader: NVML tells of the GPU with the rank's UUID") {
  const CapturedErrors errors;
  {
    GpuReader reader(LogLevel::Debug, library());
    reader.use(kUuids[1]);
    reader.use(kUuids[0]);  // a rank has one
    for (int again = 0; again < 2; ++again) {
      const GpuReading reading = reader.read();
      CHECK(reading.gauges == std::map<std::string, double>{{"gpu_utilization_percent", 20},
                                                            {"gpu_used_bytes", 2 << 20}});
      CHECK(reading.totals ==
            std::map<std::string, std::uint64_t>{{"nvlink_sent_bytes", 2138 * 1024},
                                                 {"nvlink_received_bytes", 2139 * 1024}});
    }
    CHECK(machine.sessions == 1);
  }
  CHECK(machine.sessions == 0);
  CHECK(errors.text().empty());
}

TEST_CASE("cuda gpu reader: without a GPU NVML is not even looked for") {
  bool is_asked = false;
  GpuReader reader(LogLevel::Debug, [&](const char*, const char*, std::string&) -> void* {
    is_asked = true;
    return nullptr;
  });
  CHECK(reader.read().gauges.empty());
  CHECK_FALSE(is_asked);
}

TEST_CASE("cuda gpu reader: without NVML there is one line at level debug") {
  const auto none = [](const char* library, const char*, std::string& error) -> void* {
    error = std::string(library) + ": cannot open shared object file";
    return nullptr;
  };
  for (const LogLevel level : {LogLevel::Debug, LogLevel::Info}) {
    const CapturedErrors errors;
    GpuReader reader(level, none);
    reader.use(kUuids[0]);
    for (int again = 0; again < 3; ++again) CHECK(reader.read().gauges.empty());
    CHECK(occurrences(errors.text(), "\n") == (level == LogLevel::Debug ? 1 : 0));
    if (level != LogLevel::Debug) continue;
    CHECK_THAT(errors.text(), Contains(kUuids[0] + ": libnvidia-ml.so.1: cannot open shared"));
  }
}

TEST_CASE("cuda gpu reader: an NVML that does not start or does not know the GPU tells nothing") {
  const bool starts = GENERATE(false, true);
  CAPTURE(starts);
  const CapturedErrors errors;
  {
    GpuReader reader(LogLevel::Debug, library());
    if (!starts) machine.init = FakeNvml::kNotFound;
    reader.use("GPU-of-another-machine");
    for (int again = 0; again < 2; ++again) CHECK(reader.read().gauges.empty());
  }
  // A start that failed is not ended.
  CHECK(machine.sessions == (starts ? 0 : 1));
  CHECK(occurrences(errors.text(), "another error\n") == 1);
}

TEST_CASE("cuda gpu reader: a GPU without NVLink has no traffic, and nobody complains") {
  const CapturedErrors errors;
  GpuReader reader(LogLevel::Debug, library());
  reader.use(kUuids[0]);
  machine.field = FakeNvml::kNotSupported;
  CHECK(reader.read().totals.empty());
  CHECK(reader.read().gauges.size() == 2);
  machine.field = FakeNvml::kFine;
  machine.field_type = FakeNvml::kDouble;  // would be misread
  CHECK(reader.read().totals.empty());
  machine.call = FakeNvml::kNotSupported;
  CHECK(reader.read().totals.empty());
  CHECK(reader.read().gauges.empty());
  CHECK(errors.text().empty());
}

TEST_CASE("cuda gpu reader: of a GPU that is lost there is nothing until it is back") {
  const CapturedErrors errors;
  GpuReader reader(LogLevel::Debug, library());
  reader.use(kUuids[0]);
  CHECK(reader.read().totals.size() == 2);
  machine.call = FakeNvml::kGpuIsLost;
  for (int again = 0; again < 3; ++again) {
    const GpuReading reading = reader.read();
    CHECK(reading.gauges.empty());
    CHECK(reading.totals.empty());
  }
  machine.call = FakeNvml::kFine;
  CHECK(reader.read().gauges.size() == 2);
  CHECK(occurrences(errors.text(), "GPU is lost") == 1);
}

TEST_CASE("cuda gpu reader: nobody waits for an NVML that hangs") {
  const auto reader = std::make_shared<GpuReader>(LogLevel::Info, library());
  std::latch opened(1);
  machine.hangs = &opened;
  {
    const ReadGpu read = cuda::read_with_patience(reader);
    CHECK(read().gauges.empty());
    reader->use(kUuids[0]);
    for (int again = 0; again < 2; ++again) CHECK(read().gauges.empty());
    opened.count_down();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    GpuReading reading;
    while (reading.gauges.empty() && std::chrono::steady_clock::now() < deadline) reading = read();
    CHECK(reading.gauges.size() == 2);
  }
  while (reader.use_count() > 1) std::this_thread::yield();  // the thread of the last call ends
}

namespace {

/// Collects what ranks as threads tell.
class Told {
 public:
  std::function<void(const std::string&)> function() {
    return [this](const std::string& uuid) {
      const std::lock_guard lock(mutex_);
      uuids_.insert(uuid);
    };
  }
  std::set<std::string> uuids() const {
    const std::lock_guard lock(mutex_);
    return uuids_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> uuids_;
};

const std::set<std::string> kBoth(kUuids.begin(), kUuids.end());

}  // namespace

TEST_CASE("cuda: the first operation tells which GPU a rank uses") {
  FakeMachine fakes({.devices = 2});
  Told told;
  CudaOptions options = cuda_options_of(fakes);
  options.on_gpu = told.function();
  run_gpu_ranks(fakes, 2, 2, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    runtime.submit(barrier_request()).wait();
    check(told.uuids().empty(), "none before");
    runtime.submit(barrier_request()).wait();
    sum_on_gpu(runtime, gpu, 100);
    check(!told.uuids().empty(), "one after it");
  });
  CHECK(told.uuids() == kBoth);
}

TEST_CASE("nccl: connecting tells which GPU a rank uses") {
  NcclRanks ranks(2);
  Told told;
  ranks.options.on_gpu = told.function();
  ranks.run([&](Runtime& runtime, ProgramGpu& gpu) { sum_on_gpu(runtime, gpu, 100); });
  CHECK(told.uuids() == kBoth);
}
