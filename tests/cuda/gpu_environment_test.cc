// SPDX-License-Identifier: Apache-2.0
// What the environment asks of the backends of GPUs reaches them: by the place that puts all
// backends together, on GPUs that are fakes.
#include <catch2/catch.hpp>
#include <string>

#include "backends/compose.h"
#include "tests/support/gpu/gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

TEST_CASE("nccl: RONDE_EXACT has the ranks combine floats in their order") {
  const bool is_exact = GENERATE(false, true);
  CAPTURE(is_exact);
  NcclRanks machine(2);
  const auto symbols = [&](const char* library, const char* symbol, std::string& error) {
    const bool is_of_nccl = std::string(library) == nccl::kLibrary;
    return (is_of_nccl ? machine.nccl.lookup() : machine.cuda.lookup())(library, symbol, error);
  };
  machine.config.exact = is_exact;
  run_ranks(2, [&](int rank) {
    ProgramGpu gpu = machine.gpu(rank);
    RuntimeOptions options = machine.runtime_options(rank);
    options.device_backends["nccl"] = gpu_setups(machine.config, symbols, "an image").at("nccl");
    Runtime runtime(options);
    sum_on_gpu(runtime, gpu, 100);
    check((counter_of(runtime, "nccl", "chunks_in_order") > 0) == is_exact, "who sums");
    runtime.shutdown();
  });
}

}  // namespace
