// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Everything a LibTorch program needs: LibTorch itself, ronde::init and the tensor API. The guide
/// is docs/torch.md.

#include <torch/torch.h>

#include "ronde/ronde.h"
#include "ronde/torch/amp.h"
#include "ronde/torch/broadcast.h"
#include "ronde/torch/checkpoint.h"
#include "ronde/torch/collectives.h"
#include "ronde/torch/compression.h"
#include "ronde/torch/device.h"
#include "ronde/torch/distributed_optimizer.h"
#include "ronde/torch/distributed_sampler.h"
#include "ronde/torch/elastic.h"
#include "ronde/torch/jorge.h"
#include "ronde/torch/learning_rate.h"
#include "ronde/torch/metrics.h"
#include "ronde/torch/objects.h"
#include "ronde/torch/pruned_optimizer.h"
#include "ronde/torch/random.h"
#include "ronde/torch/replicas.h"
#include "ronde/torch/script.h"
#include "ronde/torch/sync_batch_norm.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// An inline variable, so that a program that includes this header gets the thread rule of
/// ronde/torch/device.h by its own initialisation, even from a static library.
inline const bool kThreadRuleInstalled = install_thread_rule();

}  // namespace ronde::detail
