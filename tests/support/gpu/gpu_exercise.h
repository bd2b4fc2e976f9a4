// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "ronde/runtime.h"
#include "tests/support/gpu/gpu_tensor.h"

namespace ronde::test {

// What operations on a GPU give, compared bit by bit with the same on the CPU, which other tests
// compare with the truth; closely where NCCL sums or multiplies floating numbers, as
// their order is its own. All ranks call them alike; a fake GPU will do as well as a real
// one. They throw CheckFailed.

/// All dtypes, ops and scales, alone and fused, also where a rank adds nothing.
void exercise_allreduces(Runtime& runtime, ProgramGpu& gpu);
/// Elements that are sent as halves.
void exercise_wire_dtypes(Runtime& runtime, ProgramGpu& gpu);
/// Broadcasts, allgathers, alltoalls and reducescatters, with even parts, uneven and empty ones.
void exercise_exchanges(Runtime& runtime, ProgramGpu& gpu);
/// Sends and recvs of all dtypes between all ranks.
void exercise_messages(Runtime& runtime, ProgramGpu& gpu);
/// Tensors around the sizes at which the way changes, and beyond the fusion buffer.
void exercise_sizes(Runtime& runtime, ProgramGpu& gpu);
/// The exercises above, by name.
using Exercise = void (*)(Runtime& runtime, ProgramGpu& gpu);
inline const std::pair<std::string, Exercise> kExercises[] = {
    {"allreduces", exercise_allreduces},
    {"elements that are sent as halves", exercise_wire_dtypes},
    {"exchanges", exercise_exchanges},
    {"messages", exercise_messages},
    {"tensors of all sizes", exercise_sizes}};
/// A rank that has no memory for its result fails alone, and the others get theirs.
void exercise_missing_results(Runtime& runtime, ProgramGpu& gpu);

}  // namespace ronde::test
