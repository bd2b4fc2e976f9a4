// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace ronde::hierarchical {

/// Messages between a rank and those that own the same shard on other hosts.
///
/// Messages of one kind from one host to another arrive in the order in which they were sent, and
/// fill the memory of the receives in the order in which these were posted; the sizes must agree.
/// Nothing here waits. Messages are posted into batches, numbered by the caller, each of which
/// ends as a whole.
///
/// Thread-safety: as Backend.
class Wire {
 public:
  /// Messages of different kinds may overtake each other.
  enum class Kind { Partial, Result };

  virtual ~Wire() = default;
  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// The memory must stay as it is, and where it is, until done(batch).
  virtual void send(std::size_t batch, std::size_t host, Kind kind, const std::byte* from,
                    std::size_t bytes) = 0;
  virtual void receive(std::size_t batch, std::size_t host, Kind kind, std::byte* to,
                       std::size_t bytes) = 0;

  /// Whether all messages that were posted into the batch have ended; it then is empty again.
  /// Throws ronde::Error if one failed.
  virtual bool done(std::size_t batch) = 0;

  /// Messages are in progress that nobody will wait for: keeps what they may still touch.
  virtual void keep_for_ever(std::shared_ptr<void> memory) = 0;
};

}  // namespace ronde::hierarchical
