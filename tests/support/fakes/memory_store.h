// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "backends/socket/key_value.h"

namespace ronde::test {

/// A store of keys and values for ranks that are threads. Thread-safe.
class MemoryStore {
 public:
  void put(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }

  std::optional<std::string> get(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

  std::map<std::string, std::string> values() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }

  /// One rank's start over it.
  KeyValueStart start(int rank, int size) {
    return {.rank = rank,
            .size = size,
            .put = [this](const std::string& key, const std::string& value) { put(key, value); },
            .get = [this](const std::string& key) { return get(key); }};
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

}  // namespace ronde::test
