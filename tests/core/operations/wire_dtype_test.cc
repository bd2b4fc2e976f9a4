// SPDX-License-Identifier: Apache-2.0
// Allreduces of f32 and f64 that are sent as f16 and bf16, on whole runtimes. Of all ops, sizes and
// scales: tests/jobs/collectives_test.cc, and in buckets tests/sweeps/fuzz/random_programs_test.cc.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/support/fakes/faulty_backend.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

Request sum_sent_as(DataType wire, std::vector<float>& values, const std::string& name) {
  Request request = sum_request(values, name);
  request.wire_dtype = wire;
  return request;
}

}  // namespace

TEST_CASE("a wire_dtype that a backend does not offer is refused on every rank") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    const auto faults = std::make_shared<Faults>();
    // One from elsewhere, which takes segment lists.
    faults->change_capabilities([](Capabilities& capabilities) {
      capabilities.wire_dtypes.reset(static_cast<std::size_t>(DataType::BF16));
    });
    BackendFactory& factory = options.backends["inproc"];
    factory.create = [faults, create = factory.create](BackendContext& context) {
      return std::make_unique<FaultyBackend>(context.pack(create(context)), faults);
    };
    Runtime runtime(std::move(options));
    std::vector<float> values(5, 1.0F);
    check_contains(usage_error_of(runtime.submit(sum_sent_as(DataType::BF16, values, "x"))),
                   "backend faulty cannot do allreduce f32 [5] as bf16 sum on cpu");
    runtime.run(sum_sent_as(DataType::F16, values, "x"));
    check_equal(values, std::vector<float>(5, 2.0F), "the sum");
    runtime.shutdown();
  });
}

TEST_CASE("NaN, infinities and what is too large for a half") {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  for (const DataType dtype : {DataType::F32, DataType::F64}) {
    for (const DataType wire : {DataType::F16, DataType::BF16}) {
      run_group(3, [&](int rank, Runtime& runtime) {
        // Brought by ranks 0 and 1, the sum of f16, and of bf16. Rank 2 brings 1.
        const double rows[][4] = {{nan, 1, nan, nan},
                                  {-nan, infinity, nan, nan},
                                  {infinity, -infinity, nan, nan},
                                  {infinity, 5, infinity, infinity},
                                  {65519, 0, 65504, 65536},
                                  {65520, 0, infinity, 65536},
                                  {-60000, -60000, -infinity, -119808},
                                  {60000, -60000, 1, 1}};
        std::vector<double> brought, right;
        for (const auto& row : rows) {
          brought.push_back(rank == 2 ? 1 : row[rank]);
          right.push_back(row[wire == DataType::F16 ? 2 : 3]);
        }
        TensorValues values(dtype, brought);
        Request request;
        request.dtype = dtype;
        request.wire_dtype = wire;
        request.shape = {std::ssize(rows)};
        request.input = request.output = values.data();
        runtime.run(request);
        // Bit for bit: NaN is the one quiet NaN.
        check(values == TensorValues(dtype, right),
              std::string(to_string(dtype)) + " as " + std::string(to_string(wire)));
      });
    }
  }
}
