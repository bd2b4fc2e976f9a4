// SPDX-License-Identifier: Apache-2.0
// mpiexec -n 2 shm_raw [rounds] [slots] [slot KiB] [auto|regular|streaming] [auto|flat|sliced]
//
// The shared-memory backend without the engine: every rank enters at once and polls hot, in calls
// apart from each other. In every
// round it takes turns with plain MPI_Allreduce and with a memcpy of as many bytes in all processes
// at once, so that noise of the machine and its regime meet all three; a ratio is the median of the
// rounds' ratios. Once on buffers that are used again and again, once walking through more memory
// than the caches hold, as gradients do. Prints a markdown table.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/shm/shm.h"
#include "ronde/backend.h"
#include "tests/perf/rounds.h"

namespace {

using ronde::Segment;
using ronde::ShmOptions;
using ronde::perf::median;
using ronde::perf::median_ratio;
using ronde::perf::size_text;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargest = std::size_t{64} << 20;
constexpr std::size_t kMemory = std::size_t{256} << 20;
constexpr int kDefaultRounds = 15;
constexpr int kPollsBeforeYield = 2000;

/// Blobs travel by MPI, padded.
std::vector<std::string> exchange(std::string_view blob) {
  constexpr std::size_t kRoom = 4096;
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<char> own(kRoom, 0);
  const std::size_t length = blob.size();
  if (length + sizeof length > kRoom) MPI_Abort(MPI_COMM_WORLD, 2);
  std::memcpy(own.data(), &length, sizeof length);
  std::memcpy(own.data() + sizeof length, blob.data(), length);
  std::vector<char> all(kRoom * static_cast<std::size_t>(size));
  MPI_Allgather(own.data(), kRoom, MPI_BYTE, all.data(), kRoom, MPI_BYTE, MPI_COMM_WORLD);
  std::vector<std::string> blobs;
  for (const char* at = all.data(); at != all.data() + all.size(); at += kRoom) {
    std::size_t bytes = 0;
    std::memcpy(&bytes, at, sizeof bytes);
    blobs.emplace_back(at + sizeof bytes, bytes);
  }
  return blobs;
}

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<float[], Free>;

/// Ones, aligned as LibTorch aligns tensors.
Memory aligned(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  auto* const memory = static_cast<float*>(std::aligned_alloc(kAlignment, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  std::fill_n(memory, bytes / sizeof(float), 1.0F);
  return Memory(memory);
}

class Bench {
 public:
  Bench(ronde::Backend& backend, int rounds)
      : backend_(backend), rounds_(rounds), memory_(aligned(kMemory)), copy_(aligned(kLargest)) {}

  struct Row {
    std::vector<double> mpi, shm, copy;
  };

  Row measure(std::size_t bytes, bool rotates) {
    // About the same time for every size, and at least three calls.
    repeats_ = static_cast<int>(std::clamp<std::size_t>((8U << 20) / bytes, 3, 50));
    bytes_ = bytes;
    rotates_ = rotates;
    at_ = 0;
    const auto mpi = [&](float* data) {
      MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    };
    const auto shm = [&](float* data) {
      const Segment segment{data, data, bytes / sizeof(float)};
      const auto operation =
          backend_.allreduce({.segments = {&segment, 1}, .op = ronde::ReduceOp::Average});
      // Hot, as the engine polls; but where another program has the peer's core, let it run.
      for (int i = 1; !operation->poll(); ++i) {
        if (i % kPollsBeforeYield == 0) std::this_thread::yield();
      }
    };
    const auto copy = [&](float* data) { std::memcpy(copy_.get(), data, bytes); };
    time_of(mpi), time_of(shm), time_of(copy);
    Row row;
    for (int round = 0; round < rounds_; ++round) {
      row.mpi.push_back(time_of(mpi));
      row.shm.push_back(time_of(shm));
      row.copy.push_back(time_of(copy));
    }
    return row;
  }

 private:
  /// Microseconds that one call takes on this rank, in the median. A buffer that is used again is
  /// written before, as gradients are, so that its lines are in this core's cache; else they would
  /// lie where the contender before left them.
  double time_of(const std::function<void(float*)>& call) {
    std::vector<double> times;
    for (int i = 0; i < repeats_; ++i) {
      float* const data = next();
      if (!rotates_) std::fill_n(data, bytes_ / sizeof(float), 1.0F);
      MPI_Barrier(MPI_COMM_WORLD);
      const auto start = Clock::now();
      call(data);
      const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
      times.push_back(taken.count());
    }
    return median(times);
  }

  float* next() {
    if (!rotates_) return memory_.get();
    if ((at_ + 1) * bytes_ > kMemory) at_ = 0;
    return memory_.get() + at_++ * (bytes_ / sizeof(float));
  }

  ronde::Backend& backend_;
  const int rounds_;
  Memory memory_, copy_;
  int repeats_ = 1;
  std::size_t bytes_ = 0;
  bool rotates_ = false;
  std::size_t at_ = 0;
};

ShmOptions options_of(int count, char** words) {
  ShmOptions options;
  if (count > 2) options.slots = static_cast<std::size_t>(std::atoi(words[2]));
  if (count > 3) options.slot_bytes = static_cast<std::size_t>(std::atoi(words[3])) << 10;
  const std::string stores = count > 4 ? words[4] : "auto";
  if (stores == "regular") options.stores = ShmOptions::Stores::Regular;
  if (stores == "streaming") options.stores = ShmOptions::Stores::Streaming;
  const std::string reduce = count > 5 ? words[5] : "auto";
  if (reduce == "flat") options.reduce = ShmOptions::Reduce::Flat;
  if (reduce == "sliced") options.reduce = ShmOptions::Reduce::Sliced;
  return options;
}

void print(std::size_t bytes, bool rotates, const Bench::Row& row) {
  std::printf("| %s%s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", size_text(bytes).c_str(),
              rotates ? ", rotating" : "", median(row.mpi), median(row.shm), median(row.copy),
              median_ratio(row.mpi, row.shm), median_ratio(row.shm, row.copy));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : kDefaultRounds;
  const ronde::Topology topology =
      ronde::make_topology(rank, std::vector<int>(static_cast<std::size_t>(size), 0));
  ronde::BackendContext context;
  context.topology = &topology;
  context.exchange = exchange;
  context.ring_peers = [] {};
  const auto backend = ronde::shm_backend_factory(options_of(argc, argv)).create(context);
  if (rank == 0) {
    std::printf(
        "f32 average in place, %d ranks, medians of %d interleaved rounds\n\n"
        "| bytes | MPI_Allreduce, us | shm, us | memcpy, us | MPI / shm | shm / memcpy |\n"
        "|---|---|---|---|---|---|\n",
        size, rounds);
  }
  Bench bench(*backend, rounds);
  for (const bool rotates : {false, true}) {
    for (std::size_t bytes = 4; bytes <= kLargest; bytes *= 4) {
      const Bench::Row row = bench.measure(bytes, rotates);
      if (rank == 0) print(bytes, rotates, row);
    }
  }
  if (rank == 0) {
    for (const auto& [name, value] : backend->stats().counters) {
      std::printf("%s %llu\n", name.c_str(), static_cast<unsigned long long>(value));
    }
  }
  backend->close();
  MPI_Finalize();
  return 0;
}
