// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
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
  std::optional<std::chrono::steady_clock::time_point> deadline;  ///< from Request::timeout
};

}  // namespace ronde
