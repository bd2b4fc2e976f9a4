// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c_api/src/errors.h"
#include "c_api/src/work_record.h"
#include "ronde/collective.h"
#include "ronde/completion_queue.h"
#include "ronde/dtype.h"
#include "ronde/persistent.h"
#include "ronde/process_set.h"
#include "ronde/ronde_c.h"

namespace ronde::c {

/// The objects of one kind that the program holds. A handle is the number of a place in the table
/// and a count of its former uses, by which a handle that was freed is recognised.
///
/// Thread-safety: all members may be called from any thread.
template <typename Handle, typename Record>
class HandleTable {
 public:
  /// `what` names a handle in error texts: "the work".
  explicit HandleTable(std::string what) : what_(std::move(what)) {}

  Handle insert(std::shared_ptr<Record> record) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      // erase() must need no memory.
      if (free_.capacity() <= places_.size()) free_.reserve(2 * places_.size() + 1);
      places_.emplace_back();
      free_.push_back(static_cast<std::uint32_t>(places_.size() - 1));
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Place& place = places_[index];
    place.record = std::move(record);
    // Plus one: NULL is none.
    const std::uint64_t number =
        (std::uint64_t{place.generation} << kGenerationShift) + index + std::uint64_t{1};
    return reinterpret_cast<Handle>(number);
  }

  /// Inserts the record before `start` runs, and removes it if that throws: what was started always
  /// has a handle.
  template <typename Start>
  Handle insert_if(std::shared_ptr<Record> record, const Start& start) {
    const Handle handle = insert(std::move(record));
    try {
      start();
    } catch (...) {
      erase(handle);
      throw;
    }
    return handle;
  }

  /// Throws RONDE_E_INVALID_HANDLE, as erase().
  std::shared_ptr<Record> find(Handle handle) const {
    const std::lock_guard lock(mutex_);
    return places_[place_of(handle)].record;
  }
  void erase(Handle handle) {
    std::shared_ptr<Record> record;  // destroyed after the unlock, as it may log
    const std::lock_guard lock(mutex_);
    Place& place = places_[place_of(handle)];
    record = std::move(place.record);
    ++place.generation;
    free_.push_back(static_cast<std::uint32_t>(&place - places_.data()));
  }

 private:
  struct Place {
    std::uint32_t generation = 0;
    std::shared_ptr<Record> record = {};  ///< null while the place is free
  };

  static constexpr unsigned kGenerationShift = 32;
  static_assert(sizeof(Handle) == sizeof(std::uint64_t), "a handle holds two numbers of 32 bits");

  /// Called with mutex_ held.
  std::size_t place_of(Handle handle) const {
    const auto number = reinterpret_cast<std::uint64_t>(handle);
    const std::uint32_t place = static_cast<std::uint32_t>(number) - 1;
    const auto generation = static_cast<std::uint32_t>(number >> kGenerationShift);
    const bool is_held = handle != nullptr && place < places_.size() &&
                         places_[place].generation == generation &&
                         places_[place].record != nullptr;
    if (is_held) return place;
    throw Failure(RONDE_E_INVALID_HANDLE,
                  what_ + (handle == nullptr ? " is NULL" : " was freed before, or never was one"));
  }

  const std::string what_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;  ///< has room for all places
};

/// A persistent operation and the buffers that it was prepared with.
struct Persistent {
  PersistentOp operation = {};
  Collective kind;
  DataType dtype;
  std::vector<std::int64_t> shape;
  ProcessSet set;
  const void* in;
  void* out;
  void* stream;
  double rank_factor;
};

using WorkTable = HandleTable<ronde_work, WorkRecord>;
using PersistentTable = HandleTable<ronde_persistent, Persistent>;

using QueueTable = HandleTable<ronde_queue, CompletionQueue>;

/// The tables of the process. Never destroyed, as programs may free handles during static
/// destruction. In a child of fork() they throw UsageError.
/// @{
WorkTable& works();
PersistentTable& persistent_operations();
QueueTable& queues();
/// @}

}  // namespace ronde::c
