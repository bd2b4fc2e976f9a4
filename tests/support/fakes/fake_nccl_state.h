// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fakes/fake_nccl.h"

// What FakeNccl's functions share.
namespace ronde::test::fake_nccl {

using namespace ronde::nccl;
using StreamHandle = cuda::StreamHandle;

enum class Kind { AllReduce, ReduceScatter, Broadcast, AllGather, Send, Recv };

/// One call of one rank. It is done once it has met those of the others.
struct Call {
  Kind kind = Kind::AllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataTypeNumber type = kUint8;
  ReductionNumber op = kSum;
  int other = -1;       ///< the root, or the peer
  double factor = 1.0;  ///< of each rank's elements, in their type
  /// Bytes from the beginning of a window; -1: in none.
  std::ptrdiff_t input_in_window = -1, output_in_window = -1;
  bool is_done = false;
};
using Calls = std::vector<std::shared_ptr<Call>>;

/// What misuses are collected in.
class Misuses {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(text);
  }
  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

/// The ranks that were given one unique id. Their calls meet here, under the lock of the streams.
struct Ranks {
  explicit Ranks(int how_many, Misuses& where) : size(how_many), misuses(where) {}

  /// The stream of `rank` has come to it.
  void arrive(int rank, const std::shared_ptr<Call>& call);

  const int size;
  Misuses& misuses;
  std::map<int, int> device_of;               ///< of those that have come; under FakeNccl's lock
  std::map<std::string, std::set<int>> came;  ///< the same: the ranks that have called it
  /// A rank has aborted: nothing that the others do with it ends any more.
  std::atomic<bool> is_torn{false};
  std::map<int, std::uint64_t> collectives_of;
  std::map<std::uint64_t, std::map<int, std::shared_ptr<Call>>> collectives;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Call>>> sends, receives;
};

/// The number that is at `value`.
double number_at(const void* value, DataTypeNumber type);

/// Moves and reduces for all ranks, whose calls these are in their order.
void run_collective(const Calls& calls, Misuses& misuses);

struct Launch {
  Calls calls;
  StreamHandle stream = nullptr;
};

struct Member {
  std::shared_ptr<Ranks> ranks;
  int rank = 0;
  std::thread::id thread;  ///< that connected, and makes all calls
  bool has_called = false;
  bool has_finalized = false;
  std::atomic<bool> is_aborted{false};
  std::atomic<bool> is_broken{false};
};

}  // namespace ronde::test::fake_nccl

namespace ronde::test {

struct FakeNccl::State {
  State(FakeCuda& the_cuda, const Options& the_options)
      : cuda(the_cuda), options(the_options), driver(cuda::load_driver(the_cuda.lookup()).api) {}

  nccl::Result init(nccl::Communicator* communicator, int size, const nccl::UniqueId& id, int rank,
                    const nccl::CommunicatorConfig& config);
  nccl::Result look(nccl::Communicator communicator, nccl::Result* result);
  /// Of the calling thread: goes into its group, or is launched.
  nccl::Result take(const fake_nccl::Call& call, nccl::Communicator communicator,
                    cuda::StreamHandle stream);
  /// Scaled sums are sums of scaled elements. What is wrong with its operator, or nothing.
  std::string resolve(fake_nccl::Call& call, nccl::Communicator communicator);
  /// Under the lock.
  std::ptrdiff_t place_in_window(const void* memory) const;
  /// Of one call, or of a group of them.
  nccl::Result launch(nccl::Communicator communicator, fake_nccl::Launch launch);
  nccl::Result finalize(nccl::Communicator communicator);
  nccl::Result end(nccl::Communicator communicator, bool aborts);
  /// Of a call that may block. Null: it is misused.
  std::shared_ptr<fake_nccl::Member> caller(nccl::Communicator communicator, const char* what);
  std::shared_ptr<fake_nccl::Member> member(nccl::Communicator communicator, const char* what);
  /// Blocks until all ranks have come to `what`, or what blocks is ended. `member`: none while it
  /// connects, which no abort ends.
  nccl::Result meet(fake_nccl::Ranks& ranks, int rank, const std::string& what,
                    const fake_nccl::Member* member);
  void queue(const std::shared_ptr<fake_nccl::Member>& member, fake_nccl::Launch launch);

  FakeCuda& cuda;
  const Options options;
  const std::shared_ptr<const cuda::DriverApi> driver;  ///< null: there is none that is good enough
  fake_nccl::Misuses misuses;
  mutable std::mutex mutex;
  std::map<std::string, std::shared_ptr<fake_nccl::Ranks>> groups;  ///< by their ids
  std::map<nccl::Communicator, std::shared_ptr<fake_nccl::Member>> members;
  std::map<void*, nccl::Communicator> registrations;
  std::map<void*, std::pair<const std::byte*, std::size_t>> windows;  ///< memory by handle
  std::map<nccl::ReductionNumber, double> factors;  ///< of operators that were made
  nccl::ReductionNumber last_operator = nccl::kAverage;
  std::set<void*> allocations;
  nccl::Result broken = nccl::kSuccess;
  std::optional<int> lacks_a_rank_of;  ///< so many; 0: of whatever
  std::shared_future<void> aborts_return;
  std::atomic<bool> holds_calls{false};
  int connecting_ended = 0;         ///< so often
  std::condition_variable changed;  ///< anything of these, of members, and of who has come
  std::uint64_t last_number = 0;
  std::atomic<int> calls_in_progress{0};
};

}  // namespace ronde::test
