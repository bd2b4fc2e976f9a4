// SPDX-License-Identifier: Apache-2.0
// Mistakes of the operation scope: a UsageError on the ranks involved, and the job goes on.
#include <functional>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/plain_mpi.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

using Catch::Contains;

/// A request with room for whatever a test makes of it.
struct Sample {
  std::vector<double> input = std::vector<double>(64, 1.0);
  std::vector<double> output = std::vector<double>(256, 0.0);

  Request request(Collective kind) {
    Request request;
    request.kind = kind;
    request.name = "gradient";
    request.shape = {2, 3};
    request.input = input.data();
    request.output = output.data();
    return request;
  }
};

/// The name is free again, also for what was refused before, and results are right.
void check_job_goes_on(PlainMpi& mpi) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::vector<float> values(6, static_cast<float>(mpi.rank() + 1));
    Request request;
    request.name = "gradient";
    request.shape = {2, 3};
    request.input = request.output = values.data();
    ronde::submit(std::move(request)).wait();
    const auto size = static_cast<float>(mpi.size());
    CHECK(values == std::vector<float>(6, size * (size + 1.0F) / 2.0F));
  }
}

/// One rank asks for something else than the others.
struct Mismatch {
  std::string what;
  Collective kind;
  std::function<void(Request&)> change;
  std::string usual;  ///< what the text says that the other ranks sent
  std::string odd;    ///< and the one that differs
};

/// On threads, tests/core/loop/runtime_refusals_test.cc has the others.
const std::vector<Mismatch> kMismatches = {
    {"shape of a broadcast", Collective::Broadcast, [](Request& r) { r.shape = {7}; }, "[2, 3]",
     "[7]"},
    {"dtype of an allgather", Collective::Allgather, [](Request& r) { r.dtype = DataType::F64; },
     "f32", "f64"},
    {"row of an allgather", Collective::Allgather, [](Request& r) { r.shape[1] = 4; }, "[2, 3]",
     "[2, 4]"}};

void check_mismatch(const Mismatch& mismatch) {
  with_group([&](PlainMpi& mpi) {
    check_job_goes_on(mpi);  // so that the name has a slot in the response cache
    const int odd_rank = mpi.size() - 1;
    for (int repeat = 0; repeat < 3; ++repeat) {
      Sample sample;
      Request request = sample.request(mismatch.kind);
      if (mpi.rank() == odd_rank) mismatch.change(request);
      const std::string text = usage_error_of(ronde::submit(std::move(request)));
      CAPTURE(repeat);
      CHECK_THAT(text, Contains("gradient") && Contains(mismatch.usual) && Contains(mismatch.odd) &&
                           Contains("rank " + std::to_string(odd_rank)));
      const std::vector<char> characters(text.begin(), text.end());
      CHECK(mpi.same_everywhere(std::as_bytes(std::span(characters))));
      CHECK(sample.output == std::vector<double>(256, 0.0));
      check_job_goes_on(mpi);
    }
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const Mismatch& mismatch : kMismatches) {
    add_case("a different " + mismatch.what + " on one rank fails that operation on all",
             "[n2][n3]", [&mismatch] { check_mismatch(mismatch); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
