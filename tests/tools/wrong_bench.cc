// SPDX-License-Identifier: Apache-2.0
// wrong_bench bench SUBCOMMAND --backend wrong-in-the-N ...
// wrong_bench check
//
// `ronde bench` over a backend that does its N-th operation wrong on the last rank: it flips a bit
// of the first byte that was written there. `ronde check`, also over such a one.
#include <cstdlib>
#include <memory>
#include <string>

#include "backends/compose.h"
#include "ronde/ronde.h"
#include "tests/support/fakes/faulty_backend.h"
#include "tools/bench/bench.h"
#include "tools/check/check.h"

namespace {

ronde::BackendFactory wrong_in_the(int nth) {
  // Over the backend that is always there: by MPI, or of one process.
  const ronde::BackendRegistry backends = ronde::compose_built_in({}).backends;
  const auto mpi = backends.find("mpi");
  ronde::BackendFactory factory = mpi != backends.end() ? mpi->second : backends.at("shm");
  factory.priority = -1;
  factory.create = [nth, right = factory.create](ronde::BackendContext& context) {
    const auto faults = std::make_shared<ronde::test::Faults>();
    if (context.topology->rank == context.topology->size - 1) faults->flip_bit(nth);
    return std::make_unique<ronde::test::FaultyBackend>(right(context), faults);
  };
  return factory;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int nth : {1, 2, 3, 4, 5, 6}) {
    ronde::register_backend("wrong-in-the-" + std::to_string(nth), wrong_in_the(nth));
  }
  CLI::App app("`ronde bench` and `ronde check` over a backend that is wrong");
  int exit_code = EXIT_SUCCESS;
  ronde::tool::add_bench(app, exit_code);
  // The last rank's operations: it tells that it is ready or hears so, requests, and transfers.
  constexpr int kSixteenthMessage = 3 * 16;
  ronde::tool::add_check(app, exit_code, {{"wrong", wrong_in_the(kSixteenthMessage)}});
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
