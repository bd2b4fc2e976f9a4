// SPDX-License-Identifier: Apache-2.0
#include "c_api/src/work_table.h"

#include <cstddef>
#include <utility>

#include "c_api/src/errors.h"
#include "core/src/base/after_fork.h"

namespace ronde::c {
namespace {

constexpr unsigned kGenerationShift = 32;
static_assert(sizeof(ronde_work) == sizeof(std::uint64_t), "a handle holds two numbers of 32 bits");

}  // namespace

WorkTable& WorkTable::instance() {
  static auto* const table = new WorkTable();
  static const int depth = fork_depth();
  // Before mutex_ is asked for: Note [After fork].
  if (fork_depth() != depth) throw error_after_fork("a function of works");
  return *table;
}

ronde_work WorkTable::insert(std::shared_ptr<WorkRecord> record) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    // So that erase() needs no memory.
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
  return reinterpret_cast<ronde_work>(number);
}

/// Called with mutex_ held.
std::size_t WorkTable::place_of(ronde_work handle) const {
  const auto number = reinterpret_cast<std::uint64_t>(handle);
  const std::uint32_t place = static_cast<std::uint32_t>(number) - 1;
  const auto generation = static_cast<std::uint32_t>(number >> kGenerationShift);
  const bool is_held = handle != nullptr && place < places_.size() &&
                       places_[place].generation == generation && places_[place].record != nullptr;
  if (is_held) return place;
  throw Failure(RONDE_E_INVALID_HANDLE, handle == nullptr
                                            ? "the work is NULL"
                                            : "the work was freed before, or is none that an "
                                              "operation gave");
}

std::shared_ptr<WorkRecord> WorkTable::find(ronde_work handle) const {
  const std::lock_guard lock(mutex_);
  return places_[place_of(handle)].record;
}

void WorkTable::erase(ronde_work handle) {
  std::shared_ptr<WorkRecord> record;  // goes after the lock, as it may log
  const std::lock_guard lock(mutex_);
  Place& place = places_[place_of(handle)];
  record = std::move(place.record);
  ++place.generation;
  free_.push_back(static_cast<std::uint32_t>(&place - places_.data()));
}

}  // namespace ronde::c
