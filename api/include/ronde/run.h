// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ronde {

/// Tells `ronde run` that a checkpoint of this step is complete, so that it can say so if the job
/// fails. Does nothing under another launcher.
void note_checkpoint(std::int64_t step);

}  // namespace ronde
