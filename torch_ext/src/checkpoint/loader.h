// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ronde/torch/checkpoint_object.h"
#include "torch_ext/src/checkpoint/part.h"
#include "torch_ext/src/store/store.h"

namespace ronde::detail {

/// A checkpoint in memory: the items that are equal on all ranks, and this rank's own.
struct LoadedCheckpoint {
  store::Name name = {};
  int ranks = 0;  ///< that saved it
  struct Item {
    store::Entry entry = {};
    at::Tensor values = {};  ///< undefined for other ranks' own
  };
  std::map<std::string, Item> items = {};
};

/// Loads the newest checkpoint that is complete for all ranks; none if there are no checkpoints.
/// Each part is read and verified by one rank that sees it, and broadcast. Rank 0 warns of newer
/// ones that are damaged. Collective; throws UsageError on all ranks if none of the checkpoints can
/// be used, or a newer Ronde wrote one.
std::optional<LoadedCheckpoint> load_newest(const store::Store& store,
                                            const CheckpointLayout& layout);

struct NamedObject {
  std::string name = {};
  CheckpointObject object = {};
  bool local = false;  ///< each rank's own
};

/// "net/conv1.weight"; "net" for a tensor without a name, or the object's bytes.
std::string entry_name(const std::string& object, const std::string& tensor);

/// Returns the names of entries that are missing, unknown or of another form in the checkpoint;
/// empty if it fits. `ranks`: the present number. `what`: the checkpoint, for the text.
std::string mismatch(const std::vector<NamedObject>& objects, const LoadedCheckpoint& loaded,
                     int ranks, const std::string& what);

/// Loads an object that fits: see CheckpointObject::load.
std::function<void(bool keep)> load_object(const NamedObject& named,
                                           const LoadedCheckpoint& loaded);

}  // namespace ronde::detail
