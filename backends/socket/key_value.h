// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/socket/start.h"
#include "ronde/error.h"
#include "ronde/key_value_start.h"
#include "ronde/plugin/transport.h"

/// The transport of ranks that meet through a key-value store, for programs that construct a
/// Runtime themselves.
namespace ronde {

/// Records which call of put or get a start is executing. Threads that wait for the start read it.
///
/// Thread-safety: every member may be called from any thread.
class KeyValueCalls {
 public:
  /// Records that `rank` calls `what`, such as "get('ronde/0/1') of the key-value store".
  void begin(int rank, std::string what);
  void end();

  /// Returns an error that names the call in progress; nothing if there is none.
  std::optional<GroupError> hanging() const;

 private:
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  int rank_ = -1;
  std::string what_;  // empty: none
  std::chrono::steady_clock::time_point since_;
};

struct KeyValueOptions : NetworkOptions {
  KeyValueStart start = {};
  /// Records every call of the store, unless it is null.
  std::shared_ptr<KeyValueCalls> calls = nullptr;
};

/// Makes the transport: meets the other ranks on the calling thread. A single rank needs no store.
/// Throws UsageError for invalid numbers, and as net::connect_ranks(); GroupError that names the
/// ranks that are missing once init_timeout_s has passed, or if a callback threw.
std::function<std::unique_ptr<Transport>()> key_value_transport_factory(KeyValueOptions options);

}  // namespace ronde
