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

/// How an operation stores: into the slot buffer, and into the user's memory.
struct StoreKinds {
  Store buffer = Store::Regular;
  Store output = Store::Regular;
};

/// How many kinds there are.
inline constexpr std::size_t kStoreKinds = 4;

/// Kind number: bit 0 for a streaming slot buffer, bit 1 for a streaming output.
constexpr StoreKinds store_kinds(std::size_t number) noexcept {
  return {(number & 1) != 0 ? Store::Streaming : Store::Regular,
          (number & 2) != 0 ? Store::Streaming : Store::Regular};
}

/// Finds the fastest kind from the times of stretches of similar operations. It reads no clock
/// itself. Not thread-safe.
class StoreTrials {
 public:
  /// The number of the kind for the next stretch.
  std::size_t next() const noexcept { return is_trying() ? tried_ : chosen_; }
  /// The fastest so far.
  std::size_t chosen() const noexcept { return chosen_; }

  /// A stretch of `kind` took that long. True if this ended a trial.
  bool learn(std::size_t kind, std::uint64_t picoseconds_a_byte);

  /// Picoseconds a byte in the last trial; 0: never tried.
  std::uint64_t speed(std::size_t kind) const noexcept { return speed_[kind]; }

 private:
  bool is_trying() const noexcept { return tried_ < kStoreKinds; }
  bool learn_trial(std::size_t kind, std::uint64_t picoseconds_a_byte);
  void begin_trial();
  void end_trial();

  std::size_t chosen_ = 0;
  std::size_t tried_ = kStoreKinds;  ///< kStoreKinds: no trial is on
  int runs_ = 0;                     ///< of the kind that is being tried
  int sweeps_ = 0;
  std::uint64_t patience_ = 0;  ///< stretches until the next trial; 0: none was yet
  std::array<std::uint64_t, kStoreKinds> speed_ = {};
  std::uint64_t stretches_ = 0;  ///< since the last trial
  int slow_ = 0;                 ///< stretches in a row that were
};

/// Finds out which kinds of stores are fast, from the operations themselves.
///
/// Note [Choosing the stores]
/// A regular store to a line that another core read last has to take the line back first. Where
/// the cores share a cache that is cheap, and the peer then finds the data in it; where they do
/// not, it costs five times a streaming store, which however always goes to memory. A result that
/// is larger than the caches is written faster by streaming stores, but not one in place, whose
/// lines were just read. Which cores a virtual machine's processors are changes within minutes, so
/// neither the machine nor a calibration at start tells. Therefore local rank 0 tries all
/// combinations in turn on the first stretches of operations of each size (a stretch is an
/// operation, or some MiB of a larger one), takes the fastest by its own time at work (waiting does
/// not count), and tries again when that becomes slower, and now and then anyway. The others follow
/// its choice through a word of the slot buffer; one that reads it late is as correct.
///
/// Thread-safety: as Backend, but for add_stats(), which any thread may call.
class StoreChoice {
 public:
  /// One operation: which stores it uses. The leader's also measures.
  class Use;

  StoreChoice(ShmOptions::Stores mode, bool leads, std::atomic<std::uint64_t>& leaders_word);

  /// Begins an allreduce of so many bytes. `converts`: it changes the type of elements.
  Use begin(std::size_t bytes, bool in_place, bool converts = false);
  /// Begins another operation, with the best kind for allreduces of this size. Measures nothing.
  Use borrow(std::size_t bytes, bool in_place);

  void add_stats(StatsGroup& group) const;

 private:
  static constexpr std::size_t kSizes = 4;
  static constexpr std::size_t kClasses = 4 * kSizes;

  static std::size_t class_of(std::size_t bytes, bool in_place, bool converts = false);
  static Use use_of(std::size_t kind);
  void tell(std::size_t index, std::size_t kind);
  std::size_t told(std::size_t index) const;
  std::size_t next_kind(std::size_t index);
  void learn(std::size_t index, std::size_t kind, std::uint64_t picoseconds_a_byte);

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
  /// How to store a piece of so many bytes.
  Store buffer(std::size_t bytes) const noexcept { return kind_of(kinds_.buffer, bytes); }
  Store output(std::size_t bytes) const noexcept { return kind_of(kinds_.output, bytes); }

  /// Counts the time until it is destroyed as work.
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

  /// Must be called before so many bytes are stored: the kinds may change then.
  void move(std::size_t bytes);
  /// The operation is finished.
  void end();

 private:
  friend class StoreChoice;
  using Clock = std::chrono::steady_clock;

  static Store kind_of(Store wanted, std::size_t bytes) noexcept {
    // Streaming stores end with a fence, which a small piece is not worth.
    constexpr std::size_t kLeast = 2048;
    return bytes < kLeast ? Store::Regular : wanted;
  }

  void begin_stretch();
  void end_stretch();

  StoreKinds kinds_;
  StoreChoice* owner_ = nullptr;  ///< null: the kinds are fixed
  bool measures_ = false;
  std::size_t class_ = 0;
  std::size_t kind_ = 0;
  std::size_t bytes_ = 0;  ///< of the stretch
  Clock::duration busy_{0};
};

}  // namespace ronde::shm
