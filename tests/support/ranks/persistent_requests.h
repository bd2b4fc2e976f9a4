// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "ronde/runtime.h"

namespace ronde::test {

/// Submits requests through persistent operations, which it keeps for requests that come again.
///
/// Thread-safety: submit() may be called from any thread.
class PersistentRequests {
 public:
  Work submit(Runtime& runtime, Request request) {
    Start start = take_start(request);
    return operation_for(runtime, std::move(request)).start(std::move(start));
  }

 private:
  PersistentOp operation_for(Runtime& runtime, Request request) {
    std::ostringstream fixed;
    fixed << request.name << '|' << to_string(request.kind) << to_string(request.dtype)
          << to_string(request.op) << to_string(request.wire_dtype.value_or(request.dtype))
          << std::hexfloat << request.prescale << '|' << request.postscale << '|' << request.root
          << '|' << request.peer << '|' << request.tag << '|' << request.set.id << '|'
          << request.timeout.count() << request.symmetric << request.lazy;
    for (const std::int64_t dimension : request.shape) fixed << ',' << dimension;
    for (const std::int64_t split : request.splits) fixed << '/' << split;
    const std::lock_guard lock(mutex_);
    PersistentOp& known = operations_[fixed.str()];
    if (!known) known = runtime.prepare(std::move(request));
    return known;
  }

  std::mutex mutex_;
  std::map<std::string, PersistentOp> operations_;  ///< by what is fixed; guarded by mutex_
};

}  // namespace ronde::test
