// SPDX-License-Identifier: Apache-2.0
// Adasum over shared memory: the same bits as over the in-process backend.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "backends/shm/shm.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCounts[] = {1, 2, 5, 17, 333, 40'001};

/// Alike on all ranks, but for something.
TensorValues input_of(DataType dtype, std::size_t count, int rank) {
  TensorValues input(dtype, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t own = (i * 31 + static_cast<std::size_t>(rank) * 17) % 101;
    input.set(i, (static_cast<double>(i % 13) - 6 + static_cast<double>(own) / 50) / 8);
  }
  return input;
}

/// Of every rank.
std::vector<std::vector<TensorValues>> results_over(const std::string& backend, int size) {
  const inproc::Group group(size);
  std::vector<std::vector<TensorValues>> all(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.cpu_backend = backend;
    options.backends["shm"] = shm_backend_factory();
    Runtime runtime(std::move(options));
    std::vector<TensorValues>& results = all[static_cast<std::size_t>(rank)];
    for (const DataType dtype : {DataType::F16, DataType::BF16, DataType::F32, DataType::F64}) {
      for (const std::size_t count : kCounts) results.push_back(input_of(dtype, count, rank));
    }
    std::vector<Work> works;
    for (TensorValues& result : results) {
      Request request;
      request.dtype = result.dtype();
      request.shape = {static_cast<std::int64_t>(result.count())};
      request.input = request.output = result.data();
      request.op = ReduceOp::Adasum;
      works.push_back(runtime.submit(request));
    }
    for (const Work& work : works) work.wait();
    runtime.shutdown();
  });
  return all;
}

}  // namespace

TEST_CASE("adasum over shared memory is the same bits as in process") {
  for (const int size : {1, 2, 3, 5}) {
    const auto in_process = results_over("inproc", size);
    const auto shared = results_over("shm", size);
    for (const auto& of_rank : in_process) CHECK(of_rank == in_process[0]);
    CHECK(shared == in_process);
    // Something was combined.
    if (size > 1) CHECK(shared[0].back() != input_of(DataType::F64, kCounts[5], 0));
  }
}
