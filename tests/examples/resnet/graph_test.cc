// SPDX-License-Identifier: Apache-2.0
// The module that makes CUDA graphs, without a GPU.
#include <catch2/catch.hpp>

#include "common/benchmark/step_graph.h"
#include "common/errors.h"

namespace example {

using Catch::Contains;

TEST_CASE("a graph of the CPU is refused in words that help") {
  CHECK_THROWS_WITH(make_cuda_graph(c10::kCPU),
                    Contains("--cuda-graph") && Contains("add --device cuda"));
  CHECK_THROWS_AS(make_cuda_graph(c10::kCPU), InputError);
}

TEST_CASE("a cuda graph's module that is not there is told with what to do") {
  const std::filesystem::path nowhere = "/nonexistent";
  CHECK_THROWS_AS(load_cuda_graphs(nowhere), InputError);
  CHECK_THROWS_WITH(load_cuda_graphs(nowhere), Contains("/nonexistent/example_cuda_graph.so") &&
                                                   Contains("leave --cuda-graph out"));
}

TEST_CASE("a cuda graph's module opens where it is built") {
  if (GRAPHS_ARE_BUILT) {
    CHECK(load_cuda_graphs(program_folder()) != nullptr);
  } else {
    CHECK_THROWS_AS(load_cuda_graphs(program_folder()), InputError);
  }
}

}  // namespace example
