// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/topology.h"

namespace ronde {

/// Memory that all ranks of a group share, and a way to wake those that sleep: by it the ranks of
/// one host agree without messages.
///
/// Thread-safety: every member may be called from any thread.
class Board {
 public:
  /// A word on a cache line of its own.
  struct alignas(64) Word {
    std::atomic<std::uint64_t> value{0};
    std::atomic<std::int32_t> note{0};  ///< about the value; no decision depends on it
    /// The digests of two steps that may be under way at once: Note [Digests of arrivals].
    std::array<std::atomic<std::uint64_t>, 2> digests{};
  };

  virtual ~Board() = default;
  Board() = default;
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// Returns memory that all ranks share; zero at first.
  virtual std::span<Word> words() noexcept = 0;

  /// How a rank sleeps.
  enum class Sleep : std::uint8_t {
    None,     ///< it is awake
    Waiting,  ///< a thread waits there, or an operation is in progress: every change matters
    Idle,     ///< operations that the others run without it do not matter
  };

  /// Announces whether notify() of a peer has to wake this rank. Called before the last test of the
  /// condition of a sleep: the call is a full fence.
  virtual void set_asleep(Sleep sleep) noexcept = 0;

  /// Which of the ranks that sleep notify() wakes: all of them, or those with Sleep::Waiting.
  enum class Whom { All, Waiting };

  /// Returns whether notify() would wake a rank. Called after the change has been stored; a full
  /// fence.
  virtual bool has_sleepers(Whom whom) noexcept = 0;

  /// Wakes every other rank that sleeps, or those alone that wait. Called after the change has been
  /// stored; a full fence. Cheap where no rank sleeps.
  virtual void notify(Whom whom) noexcept = 0;

 protected:
  /// Returns whether notify(whom) has to wake a rank that sleeps in this way.
  static constexpr bool is_meant(Sleep sleep, Whom whom) noexcept {
    return sleep == Sleep::Waiting || (sleep == Sleep::Idle && whom == Whom::All);
  }
};

/// The means to make a board.
struct BoardContext {
  const Topology* topology = nullptr;  ///< outlives the call; not null
  /// As BackendContext::exchange.
  std::function<std::vector<std::string>(std::string_view blob)> exchange;
  /// Transport::wake_fd.
  int wake_fd = -1;
  /// Writes a warning to the log.
  std::function<void(const std::string& text)> warn = {};
};

/// Makes a board, on all ranks at the same time; null where the ranks share no memory.
using MakeBoard = std::function<std::unique_ptr<Board>(BoardContext&)>;

}  // namespace ronde
