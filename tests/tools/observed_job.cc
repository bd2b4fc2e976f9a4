// SPDX-License-Identifier: Apache-2.0
// Exchanges gradients as training does, for tests of what watches a run: observed_job STEPS
// [slow-rank|turns|new-names|slow-reader FILE]. Every sum is checked. Each rank prints what it
// knows of itself by its own clock and by the kernel.
#include <ronde/ronde.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kGradients = 256;
constexpr std::int64_t kElements = 1024;  // 4 KiB

/// Computes for some milliseconds in each round.
void compute(int rounds) {
  volatile std::uint32_t state = 1;
  for (int i = 0; i < rounds * 1'000'000; ++i) state = state * 1664525U + 1013904223U;
}

float value_of(int rank, int step, int gradient) {
  return static_cast<float>((rank + 1) * (step % 7 + gradient));
}

using Clock = std::chrono::steady_clock;

/// The peak of resident memory, as the kernel says.
long peak_kilobytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  long kilobytes = 0;
  while (file >> word && word != "VmHWM:") continue;
  file >> kilobytes;
  return kilobytes;
}

/// Has memory that is given back before the end: the peak is not what is resident then.
void touch_much_memory() {
  std::vector<char> much(std::size_t{96} << 20, 1);
  volatile char last = much.back();
  static_cast<void>(last);
}

/// What a rank knows of itself by its own clock and by the kernel.
struct OwnFigures {
  int rank = 0;
  Clock::duration least{}, most{};  ///< from the end of the first step to that of the last one
  long kilobytes = 0;               ///< before shutdown()
};

/// Reads a part of the file as the loader of a batch does; rank 0 is slow at it.
void read_batch(const std::string& path, int step) {
  if (path.empty()) return;
  const std::uint64_t offset = static_cast<std::uint64_t>(step) * 4096;
  std::ifstream file(path, std::ios::binary);
  std::vector<char> batch(4096);
  ronde::Span span("read batch");
  span.set_file(path, offset);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(batch.data(), static_cast<std::streamsize>(batch.size()));
  span.add_bytes(static_cast<std::uint64_t>(file.gcount()));
  if (ronde::rank() == 0) compute(2);
}

OwnFigures train(int steps, std::string_view pathology, const std::string& path) {
  std::vector<std::vector<float>> gradients(kGradients, std::vector<float>(kElements));
  const int ranks = ronde::size();
  OwnFigures own{.rank = ronde::rank()};
  Clock::time_point before_first, after_first;
  touch_much_memory();
  for (int step = 0; step < steps; ++step) {
    read_batch(path, step);
    const bool is_slow =
        ((pathology == "slow-rank" || !path.empty()) && ronde::rank() == ranks - 1) ||
        (pathology == "turns" && ronde::rank() == step % ranks);
    {
      const ronde::Span backward("backward");
      compute(is_slow ? 20 : 1);
    }
    std::vector<ronde::Work> works;
    for (int i = 0; i < kGradients; ++i) {
      std::vector<float>& gradient = gradients[static_cast<std::size_t>(i)];
      gradient.assign(kElements, value_of(ronde::rank(), step, i));
      ronde::Request request;
      request.name = "layer" + std::to_string(i);
      if (pathology == "new-names") request.name += " of step " + std::to_string(step);
      request.shape = {kElements};
      request.input = request.output = gradient.data();
      works.push_back(ronde::submit(request));
    }
    for (const ronde::Work& work : works) work.wait();
    for (int i = 0; i < kGradients; ++i) {
      const float sum = value_of(ranks * (ranks + 1) / 2 - 1, step, i);
      if (gradients[static_cast<std::size_t>(i)] != std::vector<float>(kElements, sum)) {
        throw std::runtime_error("a wrong sum");
      }
    }
    ronde::record("loss", 1.0 / (step + 1));
    const auto before = Clock::now();
    ronde::mark_step(8);
    const auto after = Clock::now();
    if (step == 0) before_first = before, after_first = after;
    own.least = before - after_first;
    own.most = after - before_first;
  }
  own.kilobytes = peak_kilobytes();
  return own;
}

}  // namespace

int main(int argc, char** argv) {
  OwnFigures own;
  const int code = ronde::main(
      [&] { own = train(std::stoi(argv[1]), argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : ""); });
  std::printf("rank %d: %.9f to %.9f s, %ld to %ld kB\n", own.rank,
              std::chrono::duration<double>(own.least).count(),
              std::chrono::duration<double>(own.most).count(), own.kilobytes, peak_kilobytes());
  return code;
}
