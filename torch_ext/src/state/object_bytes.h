// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/object_codec.h"

namespace ronde::detail {

/// What a failing save or load says, whatever it throws, without LibTorch's stack trace and without
/// this rank's number in front; empty if and only if it succeeds. A GroupError passes.
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

/// One part for each rank of the set, one after the other, and their sizes.
struct Parts {
  std::string bytes;
  std::vector<std::int64_t> sizes;
};

/// Gives each rank of the set its own of the root's parts (ignored elsewhere). Where `problem` is
/// not empty then, this rank had no memory, which the others are to hear in the next agreement.
std::string scatter_bytes(const std::string& subject, Parts parts, const BroadcastOptions& options,
                          std::string& problem);

}  // namespace ronde::detail
