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

vendor::SymbolLookup library() {
  the_nvml = {};
  return library_with(fake_nvml());
}

}  // namespace

TEST_CASE("cuda gpu reader: NVML tells of the GPU with the rank's UUID") {
  const CapturedErrors errors;
  int loads = 0;
  {
    GpuReader reader(LogLevel::Debug, [&loads, symbols = library()](auto&&... of) {
      return ++loads, symbols(of...);
    });
    CHECK(reader.read().gauges.empty());
    CHECK(loads == 0);  // without a GPU NVML is not even loaded
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
    CHECK(the_nvml.sessions == 1);
  }
  CHECK(the_nvml.sessions == 0);
  CHECK(errors.text().empty());
}

TEST_CASE("cuda gpu reader: without NVML, its start, or the GPU there is one line at level debug") {
  struct Row {
    vendor::SymbolLookup symbols;
    std::string uuid = kUuids[0], words = "another error\n";
    bool starts = true;
  };
  const LogLevel level = GENERATE(LogLevel::Debug, LogLevel::Info);
  for (const Row& row :
       {Row{kNoLibrary, kUuids[0], kUuids[0] + ": libnvidia-ml.so.1: cannot open shared"},
        Row{.symbols = library(), .starts = false},
        Row{.symbols = library(), .uuid = "GPU-of-another-machine"}}) {
    the_nvml = {};
    if (!row.starts) the_nvml.init = FakeNvml::kNotFound;
    const CapturedErrors errors;
    {
      GpuReader reader(level, row.symbols);
      reader.use(row.uuid);
      for (int again = 0; again < 3; ++again) CHECK(reader.read().gauges.empty());
    }
    CHECK(occurrences(errors.text(), "\n") == (level == LogLevel::Debug ? 1 : 0));
    if (level == LogLevel::Debug) CHECK_THAT(errors.text(), Contains(row.words));
    // A start that failed is not ended.
    CHECK(the_nvml.sessions == (row.starts ? 0 : 1));
  }
}

TEST_CASE("cuda gpu reader: what a GPU lacks is no complaint, and one that is lost may come back") {
  const CapturedErrors errors;
  GpuReader reader(LogLevel::Debug, library());
  reader.use(kUuids[0]);
  the_nvml.field = FakeNvml::kNotSupported;
  CHECK(reader.read().totals.empty());
  CHECK(reader.read().gauges.size() == 2);
  the_nvml.field = FakeNvml::kFine;
  the_nvml.field_type = FakeNvml::kDouble;  // would be misread
  CHECK(reader.read().totals.empty());
  the_nvml.field_type = FakeNvml::kUnsignedLongLong;
  const auto check_nothing = [&](cuda::NvmlResult result, std::size_t complaints) {
    the_nvml.call = result;
    for (int again = 0; again < 3; ++again) {
      const GpuReading reading = reader.read();
      CHECK(reading.gauges.empty());
      CHECK(reading.totals.empty());
    }
    CHECK(occurrences(errors.text(), "\n") == complaints);
  };
  check_nothing(FakeNvml::kNotSupported, 0);
  check_nothing(FakeNvml::kGpuIsLost, 1);
  CHECK_THAT(errors.text(), Contains("GPU is lost"));
  the_nvml.call = FakeNvml::kFine;
  CHECK(reader.read().gauges.size() == 2);
  CHECK(reader.read().totals.size() == 2);
}

TEST_CASE("cuda gpu reader: nobody waits for an NVML that hangs") {
  const auto reader = std::make_shared<GpuReader>(LogLevel::Info, library());
  std::latch opened(1);
  the_nvml.hangs = &opened;
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

TEST_CASE("cuda and nccl: a rank tells its GPU, at the first operation or once it has connected") {
  const bool by_nccl = GENERATE(false, true);
  std::mutex mutex;
  std::set<std::string> told;
  const auto tell = [&](const std::string& uuid) {
    const std::lock_guard lock(mutex);
    told.insert(uuid);
  };
  if (by_nccl) {
    NcclRanks ranks(2);
    ranks.options.on_gpu = tell;
    ranks.run([](Runtime& runtime, ProgramGpu& gpu) { sum_on_gpu(runtime, gpu, 100); });
  } else {
    CudaRanks ranks(2, kIpc, {.devices = 2});
    ranks.options.on_gpu = tell;
    ranks.run([&](Runtime& runtime, ProgramGpu& gpu) {
      for (int again = 0; again < 2; ++again) {
        runtime.submit(barrier_request()).wait();
        const std::lock_guard lock(mutex);
        check(told.empty(), "none before an operation");
      }
      runtime.submit(barrier_request()).wait();
      sum_on_gpu(runtime, gpu, 100);
    });
  }
  CHECK(told == std::set<std::string>(kUuids.begin(), kUuids.end()));
}
