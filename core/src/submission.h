// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "request_meta.h"
#include "ronde/request.h"
#include "work_state.h"

namespace ronde {

/// One operation of this rank on its way through the engine.
struct Submission {
  Request request;
  std::string key;  ///< Note [Keys]
  RequestMeta meta;
  std::shared_ptr<WorkState> work;
  std::uint64_t number = 0;  ///< counts the operations of this rank
  bool after_wait = false;   ///< somebody had waited for a result since the one before
  std::optional<std::chrono::steady_clock::time_point> deadline;  ///< from Request::timeout
};

}  // namespace ronde
