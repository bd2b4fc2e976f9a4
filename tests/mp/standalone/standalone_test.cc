// SPDX-License-Identifier: Apache-2.0
// A program that knows nothing of MPI. What the other ranks send is known by formula.
#include <sys/resource.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "case_table.h"
#include "oracle.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

void init_quietly() {
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  setenv("RONDE_FUSION_BYTES", "16KiB", 1);
  ronde::init();
}

Work submit_reduction(const std::string& name, const Reduction& reduction, const Elements& input,
                      Elements& output) {
  Request request;
  request.name = name;
  request.dtype = reduction.dtype;
  request.op = reduction.op;
  request.prescale = reduction.prescale;
  request.postscale = reduction.postscale;
  request.shape = {static_cast<std::int64_t>(input.count())};
  request.input = input.data();
  request.output = output.data();
  return ronde::submit(std::move(request));
}

/// The bytes of every rank, by Ronde itself.
std::vector<std::byte> gather_bytes(const Elements& elements) {
  std::vector<std::byte> all(elements.bytes().size() * static_cast<std::size_t>(ronde::size()));
  Request request;
  request.kind = Collective::Allgather;
  request.dtype = DataType::U8;
  request.shape = {static_cast<std::int64_t>(elements.bytes().size())};
  request.input = elements.data();
  request.output = all.data();
  ronde::submit(std::move(request)).wait();
  return all;
}

bool same_everywhere(const Elements& elements) {
  const std::vector<std::byte> all = gather_bytes(elements);
  const std::size_t size = elements.bytes().size();
  for (std::size_t begin = 0; begin < all.size(); begin += size) {
    if (!std::equal(elements.bytes().begin(), elements.bytes().end(),
                    all.begin() + static_cast<std::ptrdiff_t>(begin))) {
      return false;
    }
  }
  return true;
}

std::string difference(const Reduction& reduction, std::size_t count, const Elements& result) {
  std::vector<double> numbers;
  std::vector<std::int64_t> integers;
  for (int rank = 0; rank < ronde::size(); ++rank) {
    const Elements input = make_input(reduction.dtype, reduction.op, count, rank, count);
    for (std::size_t i = 0; i < count; ++i) {
      if (is_floating(reduction.dtype)) {
        numbers.push_back(input.number(i));
      } else {
        integers.push_back(input.integer(i));
      }
    }
  }
  return is_floating(reduction.dtype) ? first_difference(reduction, numbers, result)
                                      : first_difference(reduction, integers, result);
}

void check_type(DataType dtype) {
  init_quietly();
  for (const ReduceOp op : kElementwiseOps) {
    if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
    for (const std::size_t count : {1U, 777U, 30011U}) {
      const Reduction reduction = {dtype, op, 1.0, 1.0, ronde::size()};
      const Elements input = make_input(dtype, op, count, ronde::rank(), count);
      Elements output(dtype, count);
      CAPTURE(to_string(op), count);
      submit_reduction("x", reduction, input, output).wait();
      CHECK(difference(reduction, count, output) == "");
      CHECK(same_everywhere(output));
    }
  }
  ronde::shutdown();
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const DataType dtype : {DataType::I16, DataType::BF16, DataType::F32, DataType::F64}) {
    add_case("allreduce of " + std::string(to_string(dtype)) + " where Ronde brings MPI up", "",
             [dtype] { check_type(dtype); });
  }
  return true;
}();

TEST_CASE("init and shutdown may be called on different threads") {
  std::thread(init_quietly).join();
  std::vector<float> values(10, 1.0F);
  std::thread([&values] {
    Request request;
    request.shape = {10};
    request.input = request.output = values.data();
    ronde::submit(std::move(request)).wait();
  }).join();
  CHECK(values == std::vector<float>(10, static_cast<float>(ronde::size())));
  std::thread([] { ronde::shutdown(); }).join();
  CHECK_FALSE(ronde::is_initialized());
  ronde::shutdown();  // once more does nothing
}

TEST_CASE("a group that Ronde brought MPI up for cannot be had twice in a process") {
  init_quietly();
  ronde::shutdown();
  try {
    ronde::init();
    FAIL("init did not throw");
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()).find("MPI is finalised in this process") != std::string::npos);
  }
  CHECK_FALSE(ronde::is_initialized());
}

TEST_CASE("a rank that is done waits in shutdown for the work of the others", "[n2][n4]") {
  init_quietly();
  std::vector<float> values(100'000, 1.0F);
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    Request request;
    request.name = std::to_string(i);
    request.shape = {5000};
    request.input = request.output = values.data() + i * 5000;
    works.push_back(ronde::submit(std::move(request)));
  }
  const auto size = static_cast<float>(ronde::size());
  ronde::shutdown();  // lets operations finish that every rank has submitted
  for (const Work& work : works) {
    CHECK(work.done());
    CHECK_NOTHROW(work.wait());
  }
  CHECK(values == std::vector<float>(100'000, size));
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// CPU time per time waited, in `wait`.
template <typename Wait>
double load_of(Wait wait) {
  const double cpu_before = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  wait();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  CHECK(waited.count() > 2.0);
  return (cpu_seconds() - cpu_before) / waited.count();
}

TEST_CASE("waiting for a late rank leaves the core to others", "[n2][n3]") {
  constexpr double kMostLoad = 0.2;
  init_quietly();
  std::vector<float> values(1000, 1.0F);
  const auto reduce = [&values] {
    Request request;
    request.shape = {1000};
    request.input = request.output = values.data();
    ronde::submit(std::move(request)).wait();
  };
  reduce();
  const bool is_late = ronde::rank() == ronde::size() - 1;
  const double load = load_of([&] {
    // The lateness of one rank is the subject: nothing depends on how long this really takes.
    if (is_late) std::this_thread::sleep_for(std::chrono::seconds(3));
    reduce();
  });
  CAPTURE(ronde::rank(), load);
  CHECK(load < kMostLoad);
  CHECK(values[0] == static_cast<float>(ronde::size() * ronde::size()));
  ronde::shutdown();
}

}  // namespace
}  // namespace ronde::test
