// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "ronde/process_set.h"
#include "ronde/torch/object_codec.h"

namespace ronde::detail {

/// What a failing save or load says, without LibTorch's stack trace; empty if it succeeds.
std::string problem_of(const std::function<void()>& function);

/// Why there is no such rank in the set, or empty.
std::string root_problem(int root_rank, ProcessSet set);

/// broadcast_object on behalf of a function whose texts, and whose operations' names, begin with
/// `subject`. `options.name` is not used.
void broadcast_encoded(const std::string& subject, const ObjectCodec& codec,
                       const BroadcastOptions& options);

/// gather_object, in the same way.
void gather_encoded(const std::string& subject, const ListCodec& codec,
                    const BroadcastOptions& options);

/// Gives each rank of the set its own of the root's `parts` (ignored elsewhere), one for each rank.
std::string scatter_bytes(const std::string& subject, const std::vector<std::string>& parts,
                          const BroadcastOptions& options);

}  // namespace ronde::detail
