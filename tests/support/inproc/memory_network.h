// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "ronde/plugin/fabric.h"

namespace ronde::inproc {

/// The link of a rank, over which its messages leave one after the other.
struct MemoryLink {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  ///< 0: no time passes
};

/// A network between threads of this process. A message is copied once both ends have posted it,
/// and ends for both once a link of a given speed would have carried it, on a clock that the test
/// provides.
///
/// Thread-safety: every member may be called from any thread; a fabric as Fabric says.
class MemoryNetwork : public std::enable_shared_from_this<MemoryNetwork> {
 public:
  using Time = std::chrono::steady_clock::time_point;

  using Link = MemoryLink;

  explicit MemoryNetwork(int ranks, Link link = {},
                         std::function<Time()> clock = std::chrono::steady_clock::now);

  std::unique_ptr<Fabric> fabric(int rank);

  /// The rank is gone: whoever has a message with it in progress, or posts one, is told.
  void lose(int rank);

  /// What batches were given that were destroyed before their messages had ended. Refers to the
  /// network: to be dropped.
  std::vector<std::shared_ptr<void>> take_kept();

  /// When the next message in progress ends; nullopt if none does by itself.
  std::optional<Time> next_end() const;

 private:
  class Batch;
  class RankFabric;

  struct End {
    std::byte* memory = nullptr;  ///< only read at the sender's end
    std::size_t bytes = 0;
    bool is_posted = false;
  };
  struct Message {
    End from, to;
    std::optional<Time> ends;
  };
  /// Sender, receiver, tag.
  using Way = std::tuple<int, int, std::uint32_t, std::uint32_t>;

  std::shared_ptr<Message> post(const Way& way, bool sends, void* memory, std::size_t bytes);
  bool has_ended(const Message& message, int peer) const;
  void forget(int rank);

  const Link link_;
  const std::function<Time()> clock_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<Way, std::deque<std::shared_ptr<Message>>> unmatched_;
  std::vector<bool> lost_;       ///< by rank
  std::vector<Time> free_from_;  ///< the link of a rank
  std::deque<std::weak_ptr<Message>> travelling_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace ronde::inproc
