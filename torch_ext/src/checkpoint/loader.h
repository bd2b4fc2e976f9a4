// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "torch_ext/src/checkpoint/layout.h"
#include "torch_ext/src/checkpoint/part.h"
#include "torch_ext/src/store/store.h"

namespace ronde::detail {

/// A checkpoint in memory: what is equal on all ranks, and what is this rank's own.
struct LoadedCheckpoint {
  store::Name name = {};
  int ranks = 0;  ///< that saved it
  struct Item {
    store::Entry entry = {};
    at::Tensor values = {};  ///< undefined of another rank's own
  };
  std::map<std::string, Item> items = {};
};

/// The newest checkpoint that is complete for all ranks. Each part is read and verified by one rank
/// that sees it, and broadcast. Warns on rank 0 of newer ones that are damaged. Collective; throws
/// UsageError on all ranks if there are some and none can be used, or one is of a newer Ronde.
std::optional<LoadedCheckpoint> load_newest(const store::Store& store,
                                            const CheckpointLayout& layout);

}  // namespace ronde::detail
