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

/// Whatever else ranks can disagree on is in tests/core/loop/runtime_refusals_test.cc.
const std::vector<Mismatch> kMismatches = {
    {"number of dimensions", Collective::Allreduce, [](Request& r) { r.shape = {6}; }, "[2, 3]",
     "[6]"},
    {"root", Collective::Broadcast, [](Request& r) { r.root = 1; }, "root 0", "root 1"},
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

TEST_CASE("what no rank may ask for is refused on all ranks, by all or by each", "[n1][n3]") {
  with_group([](PlainMpi& mpi) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      Sample sample;
      Request request = sample.request(Collective::Broadcast);
      request.root = 4;
      CHECK_THAT(usage_error_of(ronde::submit(request)), Contains("root 4 is out of range"));
      request = sample.request(Collective::Allreduce);
      request.output = nullptr;
      CHECK_THAT(text_of<UsageError>([&] { ronde::submit(request); }), Contains("output is null"));
      check_job_goes_on(mpi);
    }
  });
}

TEST_CASE("a name in flight twice is refused where it happens and the first goes on", "[n1][n3]") {
  with_group([](PlainMpi& mpi) {
    // Rank 0 submits late, so that the others' first submission is still in flight.
    Sample first;
    Sample second;
    Work work;
    if (mpi.rank() != 0 || mpi.size() == 1) {
      // With one rank nothing stays in flight but what nobody has taken up yet: try until met.
      std::string text;
      for (int attempt = 0; attempt < 1000 && text.empty(); ++attempt) {
        work = ronde::submit(first.request(Collective::Allreduce));
        try {
          ronde::submit(second.request(Collective::Allreduce)).wait();
        } catch (const UsageError& error) {
          text = error.what();
        }
        if (mpi.size() > 1) break;
      }
      CHECK_THAT(text, Contains("gradient") && Contains("in flight"));
    }
    mpi.barrier();
    if (mpi.rank() == 0 && mpi.size() > 1) {
      work = ronde::submit(first.request(Collective::Allreduce));
    }
    work.wait();
    check_job_goes_on(mpi);
  });
}

TEST_CASE("a wait that ends before the others come harms nothing", "[n2][n3]") {
  with_group([](PlainMpi& mpi) {
    std::vector<float> values(6, 1.0F);
    Request request;
    request.name = "patient";
    request.shape = {6};
    request.input = request.output = values.data();
    Work work;
    if (mpi.rank() != 0) {
      work = ronde::submit(request);
      CHECK_FALSE(work.wait_for(std::chrono::milliseconds(30)));
      CHECK_FALSE(work.done());
    }
    mpi.barrier();
    if (mpi.rank() == 0) work = ronde::submit(request);
    work.wait();
    CHECK(values == std::vector<float>(6, static_cast<float>(mpi.size())));
  });
}

}  // namespace
}  // namespace ronde::test
