// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "c_api/src/work_record.h"
#include "ronde/ronde_c.h"

namespace ronde::c {

/// The works that the program holds. A handle is the number of a place in it, and how often that
/// place was used before: one that was freed is told from the one that has its place now.
///
/// Thread-safety: all members may be called from any thread.
class WorkTable {
 public:
  /// The table of the process. Never destroyed, as programs may free works during static
  /// destruction.
  static WorkTable& instance();

  ronde_work insert(std::shared_ptr<WorkRecord> record);
  /// Takes it out again if `start` throws: what was started has a handle, come what may.
  template <typename Start>
  ronde_work insert_if(std::shared_ptr<WorkRecord> record, const Start& start) {
    const ronde_work handle = insert(std::move(record));
    try {
      start();
    } catch (...) {
      erase(handle);
      throw;
    }
    return handle;
  }
  /// These two throw RONDE_E_INVALID_HANDLE.
  std::shared_ptr<WorkRecord> find(ronde_work handle) const;
  void erase(ronde_work handle);

 private:
  struct Place {
    std::uint32_t generation = 0;
    std::shared_ptr<WorkRecord> record = {};  ///< null while the place is free
  };

  std::size_t place_of(ronde_work handle) const;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;  ///< has room for all places
};

}  // namespace ronde::c
