// SPDX-License-Identifier: Apache-2.0
#include "file_backend.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "ronde/error.h"
#include "tests/support/ranks.h"

// The example of docs/adding_a_backend.md does what the page says: a backend that knows nothing but
// the public headers runs every collective, with ranks as threads.

namespace {

using ronde::DataType;
using ronde::ReduceOp;
using ronde::Request;
using ronde::Runtime;
using ronde::test::check;

namespace fs = std::filesystem;

void run_on_files(int size, const std::function<void(int rank, Runtime& runtime)>& body,
                  std::uint64_t fusion_bytes = 256) {
  const ronde::inproc::Group group(size);
  ronde::Config config = ronde::test::test_config();
  config.cpu_backend = "file";
  config.fusion_bytes = fusion_bytes;
  ronde::test::run_ranks(size, [&](int rank) {
    ronde::RuntimeOptions options = ronde::test::options_of(group, rank, config);
    options.backends.clear();
    options.backends["file"] = file_backend::file_backend_factory();
    Runtime runtime(std::move(options));
    check(runtime.backend_name(ronde::DeviceKind::Cpu) == "file", "the backend is the file one");
    body(rank, runtime);
    runtime.shutdown();
  });
}

template <typename T>
Request in_place(std::vector<T>& values, DataType dtype, ReduceOp op, const std::string& name) {
  Request request;
  request.name = name;
  request.dtype = dtype;
  request.op = op;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = request.output = values.data();
  return request;
}

/// A folder for temporary files that no other test uses.
class OwnTemporaryFolder {
 public:
  OwnTemporaryFolder() {
    std::string pattern = fs::temp_directory_path() / "file-backend-test-XXXXXX";
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    if (const char* const before = std::getenv("TMPDIR")) before_ = before;
    REQUIRE(setenv("TMPDIR", folder_.c_str(), 1) == 0);
  }
  ~OwnTemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    if (before_) {
      setenv("TMPDIR", before_->c_str(), 1);
    } else {
      unsetenv("TMPDIR");
    }
  }
  OwnTemporaryFolder(const OwnTemporaryFolder&) = delete;
  OwnTemporaryFolder& operator=(const OwnTemporaryFolder&) = delete;

  bool is_empty() const { return fs::is_empty(folder_); }

 private:
  fs::path folder_;
  std::optional<std::string> before_;  ///< the variable's value
};

TEST_CASE("the file backend reduces, fused and in chunks, on 1 to 4 ranks") {
  for (const int size : {1, 2, 3, 4}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1000}}) {
      run_on_files(size, [&](int rank, Runtime& runtime) {
        std::vector<float> sum(count, static_cast<float>(rank + 1));
        std::vector<double> mean(count, rank);
        std::vector<float> largest(count, static_cast<float>(-rank));
        const auto a = runtime.submit(in_place(sum, DataType::F32, ReduceOp::Sum, "sum"));
        const auto b = runtime.submit(in_place(mean, DataType::F64, ReduceOp::Average, "mean"));
        const auto c = runtime.submit(in_place(largest, DataType::F32, ReduceOp::Max, "largest"));
        a.wait();
        b.wait();
        c.wait();
        const auto ranks = static_cast<std::size_t>(size);
        check(sum == std::vector<float>(count, static_cast<float>(ranks * (ranks + 1)) / 2), "sum");
        check(mean == std::vector<double>(count, (size - 1) / 2.0), "mean");
        check(largest == std::vector<float>(count, 0), "maximum");
      });
    }
  }
}

TEST_CASE("the file backend, which knows nothing of a wire_dtype, moves halves") {
  for (const int size : {1, 2, 3}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{1000}}) {
      run_on_files(size, [&](int rank, Runtime& runtime) {
        // 1 + 2^-9 is no number of bf16, but one of f16.
        std::vector<float> sum(count, 1.001953125F);
        std::vector<double> mean(count, 1.001953125 + rank);
        Request a = in_place(sum, DataType::F32, ReduceOp::Sum, "sum");
        Request b = in_place(mean, DataType::F64, ReduceOp::Average, "mean");
        a.wire_dtype = DataType::BF16;
        b.wire_dtype = DataType::F16;
        runtime.submit(std::move(a)).wait();
        runtime.submit(std::move(b)).wait();
        check(sum == std::vector<float>(count, static_cast<float>(size)), "the sum of ones");
        const double expected[] = {1.001953125, 1.501953125, 2.001953125};
        check(mean == std::vector<double>(count, expected[size - 1]), "the mean, one of f16");
      });
    }
  }
}

TEST_CASE("the file backend broadcasts from every root and gathers uneven parts") {
  run_on_files(3, [](int rank, Runtime& runtime) {
    for (int root = 0; root < 3; ++root) {
      std::vector<double> values(100, rank);
      Request request = in_place(values, DataType::F64, ReduceOp::Sum, "broadcast");
      request.kind = ronde::Collective::Broadcast;
      request.root = root;
      runtime.submit(std::move(request)).wait();
      check(values == std::vector<double>(100, root), "the root's values");
    }
    std::vector<float> mine(static_cast<std::size_t>(rank), static_cast<float>(rank));
    std::vector<float> all(3);
    Request request = in_place(mine, DataType::F32, ReduceOp::Sum, "gather");
    request.kind = ronde::Collective::Allgather;
    request.output = all.data();
    runtime.submit(std::move(request)).wait();
    check(all == std::vector<float>{1, 2, 2}, "the parts in rank order");
  });
}

TEST_CASE("the file backend exchanges and scatters uneven parts") {
  run_on_files(3, [](int rank, Runtime& runtime) {
    // Rank r sends r + s numbers to rank s: 10 * r + s, all alike.
    std::vector<double> mine;
    std::vector<double> expected;
    Request exchange;
    for (int other = 0; other < 3; ++other) {
      const auto count = static_cast<std::size_t>(rank + other);
      exchange.splits.push_back(rank + other);
      mine.insert(mine.end(), count, 10 * rank + other);
      expected.insert(expected.end(), count, 10 * other + rank);
    }
    std::vector<double> received(expected.size());
    exchange.kind = ronde::Collective::Alltoall;
    exchange.name = "exchange";
    exchange.dtype = DataType::F64;
    exchange.shape = {static_cast<std::int64_t>(mine.size())};
    exchange.input = mine.data();
    exchange.output = received.data();
    const ronde::Work work = runtime.submit(exchange);
    work.wait();
    check(received == expected, "what each rank sent here");
    check(work.received_splits() == exchange.splits, "symmetric splits");
    std::vector<float> values(100);
    const float of_rank = 1000.0F * static_cast<float>(rank);
    for (std::size_t i = 0; i < 100; ++i) values[i] = static_cast<float>(i) + of_rank;
    Request scatter = in_place(values, DataType::F32, ReduceOp::Sum, "scatter");
    scatter.kind = ronde::Collective::Reducescatter;
    runtime.submit(scatter).wait();
    const std::size_t first = rank == 0 ? 0 : 1 + 33 * static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < (rank == 0 ? 34U : 33U); ++i) {
      check(values[i] == 3.0F * static_cast<float>(first + i) + 3000.0F, "the sum of this part");
    }
  });
}

TEST_CASE("the file backend passes messages, among operations of all") {
  run_on_files(3, [](int rank, Runtime& runtime) {
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    for (int step = 0; step < 3; ++step) {
      std::vector<double> mine(100, 10 * rank + step);
      std::vector<double> theirs(100);
      Request send = in_place(mine, DataType::F64, ReduceOp::Sum, "");
      send.kind = ronde::Collective::Send;
      send.peer = next;
      Request receive = in_place(theirs, DataType::F64, ReduceOp::Sum, "");
      receive.kind = ronde::Collective::Recv;
      receive.peer = step == 1 ? ronde::kAnyRank : previous;
      const ronde::Work received = runtime.submit(receive);
      if (step > 0) {
        std::vector<float> values(3, 2);
        runtime.submit(in_place(values, DataType::F32, ReduceOp::Sum, "sum")).wait();
        check(values[0] == 6, "the sum");
      }
      runtime.submit(send).wait();
      received.wait();
      check(received.source() == previous, "who sent it");
      check(theirs == std::vector<double>(100, 10 * previous + step), "what it sent");
    }
  });
}

TEST_CASE("what the file backend cannot do is refused before it is asked") {
  run_on_files(2, [](int, Runtime& runtime) {
    std::vector<std::int32_t> integers(3, 1);
    const auto by_type = ronde::test::text_of<ronde::UsageError>([&] {
      runtime.submit(in_place(integers, DataType::I32, ReduceOp::Sum, "integers")).wait();
    });
    check(by_type.find("backend file cannot do allreduce i32 [3] sum") != std::string::npos,
          by_type);
    std::vector<float> values(3, 2);
    const auto by_op = ronde::test::text_of<ronde::UsageError>([&] {
      runtime.submit(in_place(values, DataType::F32, ReduceOp::Product, "product")).wait();
    });
    check(by_op.find("product") != std::string::npos, by_op);
    runtime.submit(in_place(values, DataType::F32, ReduceOp::Sum, "sum")).wait();
    check(values[0] == 4, "the job goes on");
  });
}

TEST_CASE("adasum needs nothing of the file backend but to move elements") {
  run_on_files(3, [](int rank, Runtime& runtime) {
    std::vector<float> values = {rank == 2 ? 4.0F : 8.0F, 0};
    runtime.submit(in_place(values, DataType::F32, ReduceOp::Adasum, "adasum")).wait();
    check(values == std::vector<float>{6, 0}, "the average of 8 and 8, and then of 4");
  });
}

TEST_CASE("half types reach the file backend as f32") {
  run_on_files(2, [](int rank, Runtime& runtime) {
    std::vector<std::uint16_t> values(5, rank == 0 ? 0x3C00 : 0x4000);  // 1 and 2 in binary16
    runtime.submit(in_place(values, DataType::F16, ReduceOp::Sum, "half")).wait();
    check(values == std::vector<std::uint16_t>(5, 0x4200), "3 in binary16");
  });
}

TEST_CASE("the file backend leaves no file behind, after success and after a failure") {
  const OwnTemporaryFolder folder;
  run_on_files(3, [](int, Runtime& runtime) {
    std::vector<float> values(1000, 1);
    runtime.submit(in_place(values, DataType::F32, ReduceOp::Sum, "sum")).wait();
  });
  CHECK(folder.is_empty());
  run_on_files(2, [](int rank, Runtime& runtime) {
    ronde::test::text_of<ronde::GroupError>([&] {
      for (int step = 0;; ++step) {
        std::vector<float> values(10, 1);
        runtime.submit(in_place(values, DataType::F32, ReduceOp::Sum, "sum")).wait();
        if (rank == 0 && step == 3) runtime.abort("enough");
      }
    });
  });
  CHECK(folder.is_empty());
}

}  // namespace
