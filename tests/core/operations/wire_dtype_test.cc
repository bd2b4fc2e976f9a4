// SPDX-License-Identifier: Apache-2.0
// Allreduces of f32 and f64 that are sent as f16 and bf16, on whole runtimes: exactly what rounding
// by hand, and sums in f32 in the order of ranks, make.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/support/fakes/faulty_backend.h"
#include "tests/support/oracle/half_rounding.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr DataType kFulls[] = {DataType::F32, DataType::F64};
constexpr DataType kHalves[] = {DataType::F16, DataType::BF16};

struct Job {
  DataType dtype = DataType::F32;
  DataType wire = DataType::BF16;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::size_t count = 5;
};

/// With more bits than any half has, but not so large that a sum or product of a few overflows.
double brought(const Job& job, int rank, std::size_t i) {
  const auto bits = (static_cast<std::uint32_t>(i) * 64 + static_cast<std::uint32_t>(rank) + 1) *
                    std::uint32_t{2654435761};
  const double number = std::bit_cast<std::int32_t>(bits) * 0x1p-31;  // [-1, 1)
  const double value = job.op == ReduceOp::Product ? 1.0 + number / 3 : 100 * number;
  return job.dtype == DataType::F32 ? static_cast<float>(value) : value;
}

float combined(ReduceOp op, float a, float b) {
  if (op == ReduceOp::Min) return std::min(a, b);
  if (op == ReduceOp::Max) return std::max(a, b);
  return op == ReduceOp::Product ? a * b : a + b;
}

double rounded(const Job& job, double value) {
  return job.wire == job.dtype ? value : rounded_to(job.wire, value);
}

/// Returns element `i` of the result of `ranks` ranks.
double expected(const Job& job, int ranks, std::size_t i) {
  float result = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const double value = brought(job, rank, i);
    const double product = job.dtype == DataType::F32
                               ? static_cast<float>(value) * static_cast<float>(job.prescale)
                               : value * job.prescale;
    const auto sent = static_cast<float>(rounded(job, product));
    result = rank == 0 ? sent : combined(job.op, result, sent);
  }
  result *= static_cast<float>(job.postscale);
  if (job.op == ReduceOp::Average) result /= static_cast<float>(ranks);
  return rounded(job, result);
}

/// A job on its way, with its memory.
class InFlight {
 public:
  InFlight(const Job& job, int rank, bool in_place)
      : job_(job),
        rank_(rank),
        in_place_(in_place),
        input_(job.dtype, job.count),
        output_(job.dtype, job.count) {
    for (std::size_t i = 0; i < job.count; ++i) input_.set(i, brought(job, rank, i));
    if (in_place) output_ = input_;
  }

  Work submit(Runtime& runtime, const std::string& name) {
    Request request;
    request.name = name;
    request.dtype = job_.dtype;
    request.wire_dtype = job_.wire;
    request.shape = {static_cast<std::int64_t>(job_.count)};
    request.input = in_place_ ? output_.data() : input_.data();
    request.output = output_.data();
    request.op = job_.op;
    request.prescale = job_.prescale;
    request.postscale = job_.postscale;
    return runtime.submit(request);
  }

  void check_result(int ranks) const {
    std::vector<double> got, right;
    for (std::size_t i = 0; i < job_.count; ++i) {
      got.push_back(output_.get(i));
      right.push_back(expected(job_, ranks, i));
      check(input_.get(i) == brought(job_, rank_, i), "the input is as it was");
    }
    check_equal(got, right,
                std::string(to_string(job_.dtype)) + " as " + std::string(to_string(job_.wire)) +
                    ", " + std::string(to_string(job_.op)));
  }

 private:
  const Job job_;
  const int rank_;
  const bool in_place_;
  TensorValues input_, output_;
};

std::vector<Job> all_jobs() {
  std::vector<Job> jobs;
  for (const DataType dtype : kFulls) {
    for (const DataType wire : kHalves) {
      for (const ReduceOp op : kElementwiseOps) {
        for (const auto& [prescale, postscale] : {std::pair(1.0, 1.0), std::pair(0.3, 1.7)}) {
          for (const std::size_t count : {0, 1, 2, 3, 7, 64, 1001}) {
            jobs.push_back({dtype, wire, op, prescale, postscale, count});
          }
        }
      }
    }
  }
  return jobs;
}

/// Runs all jobs at once; those of the second step are cached.
void run_jobs(const std::vector<Job>& jobs, int rank, Runtime& runtime) {
  std::vector<InFlight> flight;
  std::vector<Work> works;
  for (const Job& job : jobs) flight.emplace_back(job, rank, flight.size() % 3 == 0);
  for (InFlight& job : flight) {
    works.push_back(job.submit(runtime, "t" + std::to_string(works.size())));
  }
  for (const Work& work : works) work.wait();
  for (const InFlight& job : flight) job.check_result(runtime.topology().size);
}

void run_all_jobs(int rank, Runtime& runtime) {
  for (int step = 0; step < 2; ++step) run_jobs(all_jobs(), rank, runtime);
}

Config with_fusion_of(std::uint64_t bytes) {
  Config config = test_config();
  config.fusion_bytes = bytes;
  return config;
}

}  // namespace

TEST_CASE("elements are sent as halves: the same bits as rounding by hand and sums in rank order") {
  for (const int size : {1, 2, 3, 5}) {
    // No fusion, chunks of a few elements, and everything in one.
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{128}, std::uint64_t{64} << 20}) {
      run_group(size, run_all_jobs, with_fusion_of(bytes));
    }
  }
}

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
    InFlight job({}, rank, true);
    check_contains(usage_error_of(job.submit(runtime, "x")),
                   "backend faulty cannot do allreduce f32 [5] as bf16 sum on cpu");
    InFlight other({.wire = DataType::F16}, rank, true);
    other.submit(runtime, "x").wait();
    other.check_result(2);
    runtime.shutdown();
  });
}

TEST_CASE("NaN, infinities and what is too large for a half") {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  for (const DataType dtype : kFulls) {
    for (const DataType wire : kHalves) {
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
        TensorValues values(dtype, std::size(rows));
        for (std::size_t i = 0; i < values.count(); ++i) {
          values.set(i, rank == 2 ? 1 : rows[i][rank]);
        }
        Request request;
        request.dtype = dtype;
        request.wire_dtype = wire;
        request.shape = {std::ssize(rows)};
        request.input = request.output = values.data();
        runtime.submit(request).wait();
        TensorValues quiet(dtype, 1);
        quiet.set(0, nan);
        for (std::size_t i = 0; i < values.count(); ++i) {
          const double right = rows[i][wire == DataType::F16 ? 2 : 3];
          if (std::isnan(right)) {
            const auto* bytes = static_cast<const std::byte*>(values.data()) + i * size_of(dtype);
            check(std::memcmp(bytes, quiet.data(), quiet.bytes()) == 0, "the one quiet NaN");
          } else {
            check(values.get(i) == right, "row " + std::to_string(i) + " is " +
                                              std::to_string(values.get(i)) + " as " +
                                              std::string(to_string(wire)));
          }
        }
      });
    }
  }
}

TEST_CASE("wire_dtypes fuse with their like, and halve the bytes that are counted") {
  Config config = test_config();
  config.cycle_time_ms = 10000.0;  // gather until somebody waits
  const auto body = [](int rank, Runtime& runtime) {
    std::vector<Job> jobs;
    for (int i = 0; i < 3; ++i) {
      for (const DataType wire : {DataType::BF16, DataType::F16, DataType::F32}) {
        jobs.push_back({.wire = wire, .count = 100});
      }
    }
    // All operations of a step are agreed on together once the first step has filled the cache.
    for (int step = 0; step < 2; ++step) {
      const std::uint64_t buckets = counter_of(runtime, "execution", "buckets");
      run_jobs(jobs, rank, runtime);
      check(counter_of(runtime, "execution", "buckets") == buckets + 3, "one a wire_dtype");
    }
    const auto counter = [&](const std::string& name) {
      return counter_of(runtime, "execution", name);
    };
    check(counter("bytes") == 2 * (600 * 2 + 300 * 4), "as they travel");
    check(counter("uncompressed_bytes") == 2 * 900 * 4, "as they were");
    check(counter("largest_bucket_bytes") == 1200, "of f32");
    check(counter_of(runtime, "submission", "bytes") == 2 * 900 * 4, "of the program");
  };
  run_group(2, body, config);
}
