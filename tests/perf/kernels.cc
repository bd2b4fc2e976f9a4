// SPDX-License-Identifier: Apache-2.0
// kernels [rounds]
//
// How fast every set of kernels averages the inputs of two ranks, and of four, beside memcpy of as
// many bytes as one of them has. All take turns in every round; a ratio is the median of the
// rounds' ratios. Prints a markdown table.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ronde/kernels.h"
#include "tests/perf/rounds.h"

namespace {

using namespace ronde;
using perf::median;
using perf::median_ratio;
using perf::size_text;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargest = std::size_t{64} << 20;
constexpr int kDefaultRounds = 15;

/// Microseconds of one call. Small operands are used again and again, from the same cache.
double time_of(const std::function<void()>& call, std::size_t bytes) {
  const std::size_t repeats = kLargest / 4 / bytes + 1;
  const auto start = Clock::now();
  for (std::size_t i = 0; i < repeats; ++i) call();
  const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
  return taken.count() / static_cast<double>(repeats);
}

struct Buffers {
  std::array<std::vector<std::byte>, 4> inputs;
  std::vector<std::byte> output;

  Buffers() : output(kLargest) {
    for (auto& input : inputs) input.assign(kLargest, std::byte{0x3c});  // normal in every type
  }
};

struct Row {
  std::string name;
  std::size_t moved;  ///< bytes read and written
  std::function<void()> call;
  std::vector<double> times = {};
};

Row memcpy_row(Buffers& buffers, std::size_t bytes) {
  return {"memcpy", 2 * bytes, [&buffers, bytes] {
            std::memcpy(buffers.output.data(), buffers.inputs[0].data(), bytes);
          }};
}

Row reduce_row(Buffers& buffers, std::size_t bytes, const Kernels& kernels, DataType dtype,
               std::size_t ranks, Store store) {
  const std::string name = std::string(kernels.name) + ", " + std::string(to_string(dtype)) + ", " +
                           std::to_string(ranks) + " inputs, " +
                           (store == Store::Streaming ? "streaming" : "regular");
  return {name, (ranks + 1) * bytes, [&buffers, &kernels, bytes, dtype, ranks, store] {
            std::array<const void*, 4> inputs{};
            for (std::size_t i = 0; i < ranks; ++i) inputs[i] = buffers.inputs[i].data();
            const Scaling final{1.0 / static_cast<double>(ranks), 1.0};
            kernels.reduce(buffers.output.data(), {inputs.data(), ranks}, bytes / size_of(dtype),
                           {.dtype = dtype, .final = final}, store);
          }};
}

std::vector<Row> rows_of(Buffers& buffers, std::size_t bytes) {
  std::vector<Row> rows = {memcpy_row(buffers, bytes)};
  for (const Kernels* kernels : available_kernels()) {
    for (const DataType dtype : {DataType::F32, DataType::BF16, DataType::F16}) {
      rows.push_back(reduce_row(buffers, bytes, *kernels, dtype, 2, Store::Regular));
    }
    rows.push_back(reduce_row(buffers, bytes, *kernels, DataType::F32, 4, Store::Regular));
    if (bytes < kLargest) continue;
    rows.push_back(reduce_row(buffers, bytes, *kernels, DataType::F32, 2, Store::Streaming));
    rows.push_back(reduce_row(buffers, bytes, *kernels, DataType::BF16, 2, Store::Streaming));
  }
  return rows;
}

void measure(Buffers& buffers, std::size_t bytes, int rounds) {
  std::vector<Row> rows = rows_of(buffers, bytes);
  for (Row& row : rows) time_of(row.call, bytes);
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) row.times.push_back(time_of(row.call, bytes));
  }
  for (const Row& row : rows) {
    const double microseconds = median(row.times);
    const double least = *std::min_element(row.times.begin(), row.times.end());
    std::printf("| %s | %s | %.2f | %.2f | %.1f | %.2f |\n", size_text(bytes).c_str(),
                row.name.c_str(), microseconds, least, static_cast<double>(row.moved) / least / 1e3,
                median_ratio(row.times, rows[0].times));
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kDefaultRounds;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: kernels [rounds]\n");
    return 2;
  }
  Buffers buffers;
  std::printf("Averages by every set of kernels, medians of %d interleaved rounds\n\n", rounds);
  std::printf(
      "| bytes of an input | what | us, median | us, least | GB/s, best | time / memcpy's |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const std::size_t bytes : {std::size_t{8} << 10, std::size_t{256} << 10, kLargest}) {
    measure(buffers, bytes, rounds);
  }
}
