// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "backends/shm/shm.h"
#include "ronde/kernels.h"
#include "ronde/stats.h"

namespace ronde::shm {

/// The number of kinds of stores. A kind's number has bit 0 for streaming stores into the slot
/// buffer, and bit 1 for streaming stores into the user's memory.
inline constexpr std::size_t kStoreKinds = 4;

/// Finds the fastest kind from the times of stretches of similar operations. Reads no clock. Not
/// thread-safe.
class StoreTrials {
 public:
  /// The number of the kind for the next stretch.
  std::size_t next() const noexcept { return is_trying() ? tried_ : chosen_; }
  /// The fastest so far.
  std::size_t chosen() const noexcept { return chosen_; }

  /// Records the time of a stretch of `kind`. True if this ended a trial.
  bool learn(std::size_t kind, std::uint64_t picoseconds_per_byte);

  /// Picoseconds per byte in the last trial; 0: never tried.
  std::uint64_t speed(std::size_t kind) const noexcept { return speed_[kind]; }

 private:
  bool is_trying() const noexcept { return tried_ < kStoreKinds; }
  bool learn_trial(std::size_t kind, std::uint64_t picoseconds_per_byte);
  void begin_trial();
  void end_trial();

  std::size_t chosen_ = 0;
  std::size_t tried_ = kStoreKinds;  ///< kStoreKinds: no trial is running
  int runs_ = 0;                     ///< of the kind being tried
  int sweeps_ = 0;
  std::uint64_t patience_ = 0;  ///< stretches until the next trial; 0: no trial yet
  std::array<std::uint64_t, kStoreKinds> speed_ = {};
  std::uint64_t stretches_ = 0;  ///< since the last trial
  int slow_ = 0;                 ///< slow stretches in a row
};

/// Chooses the kinds of stores by measuring operations.
///
/// Note [Choosing the stores]
/// A regular store to a line that another core has read has to get the line back first. That is
/// cheap if the cores share a cache, in which the peer then finds the data. If they do not, it
/// costs five times as much as a streaming store, which always writes to memory. Streaming stores
/// are faster for results larger than the caches, but not for results in place, whose lines were
/// just read. The cores behind a virtual machine's processors change within minutes, so neither the
/// model of the machine nor a calibration at start decides. Therefore local rank 0 tries all
/// combinations in turn on the first stretches of operations of each size (a stretch is an
/// operation, or some MiB of a larger one) and chooses the fastest by its own working time, without
/// waits. It tries again when that becomes slower, and from time to time anyway. The others read
/// its choice from a word of the slot buffer; results are correct even if they read it late.
///
/// Thread-safety: as Backend, but any thread may call add_stats().
class StoreChoice {
 public:
  /// The stores of one operation. Local rank 0 also measures them.
  class Use;

  StoreChoice(ShmOptions::Stores mode, bool leads, std::atomic<std::uint64_t>& leaders_word);

  /// Begins an allreduce of `bytes`. `converts`: it changes the type of elements.
  Use begin(std::size_t bytes, bool in_place, bool converts = false);
  /// Begins another operation, with the best kind for allreduces of this size, without measuring.
  Use borrow(std::size_t bytes, bool in_place);

  void add_stats(StatsGroup& group) const;

 private:
  static constexpr std::size_t kSizes = 4;
  static constexpr std::size_t kClasses = 4 * kSizes;

  static std::size_t class_of(std::size_t bytes, bool in_place, bool converts = false);
  static Use use_of(std::size_t kind);
  void publish(std::size_t index, std::size_t kind);
  std::size_t published(std::size_t index) const;
  std::size_t next_kind(std::size_t index);
  void learn(std::size_t index, std::size_t kind, std::uint64_t picoseconds_per_byte);

  const ShmOptions::Stores mode_;
  const bool leads_;
  std::atomic<std::uint64_t>& leaders_word_;
  std::array<StoreTrials, kClasses> classes_ = {};

  std::atomic<std::uint64_t> trials_ = 0;
  std::atomic<std::uint64_t> streamed_slot_bytes_ = 0;
  std::atomic<std::uint64_t> streamed_output_bytes_ = 0;
  std::array<std::atomic<std::uint64_t>, kStoreKinds> largest_speed_ = {};
};

class StoreChoice::Use {
 public:
  /// The kind of store for a piece of `bytes`.
  Store buffer(std::size_t bytes) const noexcept { return store(1, bytes); }
  Store output(std::size_t bytes) const noexcept { return store(2, bytes); }

  /// Counts the time until its destruction as work.
  class Timing {
   public:
    explicit Timing(Use& use) : use_(use.measures_ ? &use : nullptr) {
      if (use_ != nullptr) start_ = Clock::now();
    }
    ~Timing() {
      if (use_ != nullptr) use_->busy_ += Clock::now() - start_;
    }
    Timing(const Timing&) = delete;
    Timing& operator=(const Timing&) = delete;

   private:
    Use* const use_;
    std::chrono::steady_clock::time_point start_;
  };

  /// Must be called before `bytes` are stored. Later calls of buffer() and output() may differ.
  void move(std::size_t bytes);
  /// Ends the operation.
  void end();

 private:
  friend class StoreChoice;
  using Clock = std::chrono::steady_clock;

  Store store(std::size_t bit, std::size_t bytes) const noexcept {
    // Streaming stores end with a fence, which costs too much for a small piece.
    constexpr std::size_t kLeast = 2048;
    return bytes < kLeast || (kind_ & bit) == 0 ? Store::Regular : Store::Streaming;
  }

  void begin_stretch();
  void end_stretch();

  StoreChoice* owner_ = nullptr;  ///< null: the kind is fixed
  bool measures_ = false;
  std::size_t class_ = 0;
  std::size_t kind_ = 0;
  std::size_t bytes_ = 0;  ///< in the current stretch
  Clock::duration busy_{0};
};

}  // namespace ronde::shm
