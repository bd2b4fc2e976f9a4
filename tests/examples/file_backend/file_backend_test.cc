// SPDX-License-Identifier: Apache-2.0
#include "file_backend.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "tests/support/oracle/forms.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

// The example of docs/adding_a_backend.md does what the page says: a backend that knows nothing but
// the public headers runs every collective, with ranks as threads.

namespace {

using namespace ronde;
using namespace ronde::test;

void run_on_files(int size, const std::function<void(int rank, Runtime& runtime)>& body) {
  const inproc::Group group(size);
  Config config = test_config();
  config.cpu_backend = "file";
  config.fusion_bytes = 256;
  run_ranks(size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank, config);
    options.backends.clear();
    options.backends["file"] = file_backend::file_backend_factory();
    Runtime runtime(std::move(options));
    check(runtime.backend_name(DeviceKind::Cpu) == "file", "the backend is the file one");
    body(rank, runtime);
    runtime.shutdown();
  });
}

/// All that the backend says it can do: halves reach it as f32, a wire_dtype as what travels, and
/// adasum as elements to move.
std::vector<Row> rows_of(int size) {
  std::vector<Row> rows;
  for (const DataType dtype : {DataType::F16, DataType::BF16, DataType::F32, DataType::F64}) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
      rows.push_back({.kind = Collective::Allreduce, .dtype = dtype, .op = op});
      rows.push_back({.kind = Collective::Reducescatter, .dtype = dtype, .op = op});
    }
    for (int root = 0; root < size; ++root) {
      rows.push_back({.kind = Collective::Broadcast, .dtype = dtype, .root = root});
    }
    rows.push_back({.kind = Collective::Allgather, .dtype = dtype});
    rows.push_back({.kind = Collective::Alltoall, .dtype = dtype});
    if (size > 1) rows.push_back({.kind = Collective::Send, .dtype = dtype});
    if (is_half(dtype)) continue;
    rows.push_back({.kind = Collective::Allreduce, .dtype = dtype, .op = ReduceOp::Adasum});
    for (const DataType wire : {DataType::F16, DataType::BF16}) {
      rows.push_back({.dtype = dtype, .op = ReduceOp::Average, .wire_dtype = wire});
    }
  }
  return rows;
}

void check_rows(const Row& like, Runtime& runtime, int rank) {
  Row row = like;
  for (const std::size_t width : {1, 100}) {
    for (const bool shares : {false, true}) {
      row.width = width;
      row.in_place = shares;
      const std::string wrong = run_row(row, runtime, {{}, runtime.ranks_of({}), rank});
      check(wrong.empty(), std::string(to_string(row.kind)) + " " +
                               std::string(to_string(row.dtype)) + " " +
                               std::string(to_string(row.op)) + " of width " +
                               std::to_string(width) + (shares ? " in place: " : ": ") + wrong);
    }
  }
}

TEST_CASE("the file backend runs every collective, in chunks, on 1 to 4 ranks") {
  for (const int size : {1, 2, 3, 4}) {
    run_on_files(size, [&](int rank, Runtime& runtime) {
      for (const Row& row : rows_of(size)) check_rows(row, runtime, rank);
    });
  }
}

TEST_CASE("the file backend reduces what is fused") {
  run_on_files(3, [](int rank, Runtime& runtime) {
    std::vector<std::vector<float>> sums;
    for (int i = 1; i <= 20; ++i) sums.emplace_back(7, static_cast<float>(rank * i));
    std::vector<Work> works;
    for (std::vector<float>& sum : sums) {
      const std::string name = std::to_string(works.size());
      works.push_back(runtime.submit(sum_request(sum, name)));
    }
    for (const Work& work : works) work.wait();
    float factor = 0;
    for (const std::vector<float>& sum : sums) {
      check(sum == std::vector<float>(7, 3 * ++factor), "a sum");
    }
  });
}

TEST_CASE("what the file backend cannot do is refused before it is asked") {
  run_on_files(2, [](int, Runtime& runtime) {
    std::vector<float> values(3, 2);
    for (const bool by_type : {true, false}) {
      Request request = sum_request(values, "refused");
      if (by_type) request.dtype = DataType::I32;
      if (!by_type) request.op = ReduceOp::Product;
      const std::string text = text_of<UsageError>([&] { runtime.submit(request).wait(); });
      check_contains(text, std::string("backend file cannot do allreduce ") +
                               (by_type ? "i32 [3] sum" : "f32 [3] product"));
    }
    runtime.submit(sum_request(values, "sum")).wait();
    check(values[0] == 4, "the job goes on");
  });
}

TEST_CASE("the file backend leaves no file behind, after success and after a failure", "[own]") {
  const TemporaryFolder folder;
  REQUIRE(setenv("TMPDIR", folder.path().c_str(), 1) == 0);
  run_on_files(3, [](int, Runtime& runtime) {
    std::vector<float> values(1000, 1);
    runtime.submit(sum_request(values, "sum")).wait();
  });
  CHECK(std::filesystem::is_empty(folder.path()));
  run_on_files(2, [](int rank, Runtime& runtime) {
    text_of<GroupError>([&] {
      for (int step = 0;; ++step) {
        std::vector<float> values(10, 1);
        runtime.submit(sum_request(values, "sum")).wait();
        if (rank == 0 && step == 3) runtime.abort("enough");
      }
    });
  });
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace
