// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/benchmark/benchmark.h"
#include "resnet_options.h"

namespace resnet {

/// The model with random images and classes, drawn once; different ones on every rank.
example::Workload make_workload(const Options& options);

}  // namespace resnet
