// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "tools/bench/base/bench_options.h"
#include "tools/bench/base/pattern.h"
#include "tools/bench/base/report.h"
#include "tools/bench/base/ring.h"
#include "tools/bench/session/session.h"
#include "tools/bench/subjects/raw_subject.h"

namespace {

using Catch::Contains;
using namespace ronde::tool;

TEST_CASE("a backend alone gives up what takes too long, and says what it was") {
  RawSubject raw(std::chrono::milliseconds(50));
  CHECK_THROWS_WITH(raw.wait_until([] { return false; }, "what never comes"),
                    Contains("rank 0") && Contains("what never comes"));
  raw.wait_until([] { return true; }, "nothing");
  raw.close();
}

TEST_CASE("a percentile is the nearest sample that the share does not exceed") {
  const Samples samples = {5, 1, 4, 2, 3};
  CHECK(percentile(samples, 0.0) == 1);
  CHECK(percentile(samples, 0.2) == 1);
  CHECK(percentile(samples, 0.21) == 2);
  CHECK(median(samples) == 3);
  CHECK(percentile(samples, 0.99) == 5);
  CHECK(median({2, 1}) == 1);
  Samples hundred(100);
  std::iota(hundred.begin(), hundred.end(), 1);
  CHECK(percentile(hundred, 0.99) == 99);
  CHECK(median(hundred) == 50);
}

TEST_CASE("a wrong element is found in every type, with both values") {
  for (const ronde::DataType dtype : ronde::kAllDataTypes) {
    INFO(to_string(dtype));
    constexpr std::size_t kCount = 100;
    const auto rule = [](std::size_t index) { return static_cast<int>(index % 3); };
    std::vector<std::byte> data(kCount * size_of(dtype));
    fill(dtype, data.data(), kCount, rule);
    CHECK(difference(dtype, data.data(), kCount, rule).empty());
    fill(dtype, data.data() + 49 * size_of(dtype), 1, [](std::size_t) { return 0; });
    CHECK(difference(dtype, data.data(), kCount, rule) == "element 49 is 0 and should be 1");
    CHECK(difference(dtype, data.data(), 49, rule).empty());
  }
}

TEST_CASE(
    "the pattern of one rank is neither that of another nor its own moved by a power of two") {
  for (const std::size_t shift : {0, 1, 64, 4096, 65536}) {
    for (int rank = 0; rank < 3; ++rank) {
      int same = 0;
      for (std::size_t i = 0; i < 300; ++i) {
        same += pattern(0, i) == pattern(rank, i + shift) ? 1 : 0;
      }
      INFO(shift << " " << rank << " " << same);
      CHECK((same < 200) == (shift != 0 || rank != 0));
    }
  }
}

TEST_CASE("a ring hands its slots out in turn, aligned, and zeroed by a split") {
  Ring ring(1000);
  ring.split(100, 1000);  // slots of 128 bytes
  std::byte* const first = ring.next();
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
  for (int i = 1; i < 7; ++i) {
    CHECK(ring.next() == first + i * 128);
    CHECK(ring.last() == first + i * 128);
  }
  CHECK(ring.next() == first);
  std::memset(first, 1, 100);
  ring.split(100, 0);
  CHECK(ring.next() == first);
  CHECK(ring.next() == first);
  CHECK(*first == std::byte{0});
}

/// What `command words...` asks for.
BenchOptions parsed(std::vector<std::string> words) {
  CLI::App command;
  const auto options = std::make_shared<BenchOptions>();
  add_bench_options(command,
                    {"--min", "--max", "--rotate", "--dtype", "--wire-dtype", "--backend", "--raw",
                     "--baseline", "--model"},
                    options);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the end
  command.parse(words);
  check_bench_options(*options);
  return *options;
}

TEST_CASE("options: how much memory is walked through") {
  CHECK(rotate_bytes_for(parsed({}), 2) == 0);
  const BenchOptions asked = parsed({"--rotate", "8MiB"});
  CHECK(rotate_bytes_for(asked, 1) == std::size_t{8} << 20);
  CHECK(rotate_bytes_for(asked, 16) == std::size_t{8} << 20);
  const BenchOptions own_choice = parsed({"--rotate", "--min", "4"});
  CHECK(rotate_bytes_for(own_choice, 1) >= rotate_bytes_for(own_choice, 4));
  CHECK(rotate_bytes_for(own_choice, 1 << 20) == std::size_t{64} << 20);
}

TEST_CASE("larger sizes are timed less often, unless the user says how often") {
  BenchOptions options;
  CHECK(iterations_for(options, 0) == 1000);
  CHECK(iterations_for(options, 4) == 1000);
  CHECK(iterations_for(options, std::size_t{1} << 20) == 256);
  CHECK(iterations_for(options, std::size_t{1} << 30) == 20);
  options.iterations = 3;
  CHECK(iterations_for(options, 4) == 3);
}

TEST_CASE("a report prints the columns that it was given, and keeps whole rows") {
  const std::vector<Column> columns = {{"bytes", "bytes"}, {"p50 us", "p50_us", 2}};
  std::ostringstream out;
  Report report(&out);
  report.begin_table(columns);
  report.add({{"bytes", 4}, {"p50_us", 1.239}, {"hidden", "x"}});
  report.add({{"bytes", 8}, {"p50_us", nullptr}, {"hidden", "y"}});
  report.set_everywhere("regime", "near");
  CHECK(out.str() ==
        "       bytes      p50 us\n"
        "           4        1.24\n"
        "           8           -\n");
  CHECK(report.rows().size() == 2);
  CHECK(report.rows()[1].at("hidden") == "y");
  CHECK(report.rows()[0].at("regime") == "near");
  CHECK(size_text(1) == "1 B");
  CHECK(size_text(1536) == "1536 B");
  CHECK(size_text(2048) == "2 KiB");
  CHECK(size_text(std::size_t{64} << 20) == "64 MiB");
}

}  // namespace
