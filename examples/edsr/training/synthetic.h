// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/benchmark/benchmark.h"
#include "edsr_options.h"

namespace edsr {

/// The network with random patches, low-resolution ones and their targets, drawn once; different
/// ones on every rank.
example::Workload make_workload(const Options& options);

}  // namespace edsr
