// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ronde/torch/checkpoint_object.h"
#include "torch_ext/src/checkpoint/loader.h"

namespace ronde::detail {

struct NamedObject {
  std::string name = {};
  CheckpointObject object = {};
  bool local = false;  ///< each rank's own
};

/// "net/conv1.weight"; "net" for a tensor without a name, or the rest.
std::string entry_name(const std::string& object, const std::string& tensor);

/// What is missing, unknown or of another form in the checkpoint, by name; empty if it fits.
/// `ranks`: how many there are now. `what`: the checkpoint, for the text.
std::string mismatch(const std::vector<NamedObject>& objects, const LoadedCheckpoint& loaded,
                     int ranks, const std::string& what);

/// Loads an object that fits: see CheckpointObject::load.
std::function<void(bool keep)> load_object(const NamedObject& named,
                                           const LoadedCheckpoint& loaded);

}  // namespace ronde::detail
