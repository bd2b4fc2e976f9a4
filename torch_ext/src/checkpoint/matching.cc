// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/matching.h"

#include <set>

#include "ronde/error.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {
namespace {

/// Differences between what is saved and what is here.
class Differences {
 public:
  Differences(const LoadedCheckpoint& loaded, int ranks) : loaded_(loaded), ranks_(ranks) {}

  void compare(const NamedObject& named) {
    if (named.local && loaded_.ranks != ranks_) {
      add("\"" + named.name + "\" is each rank's own, and was saved by " +
          std::to_string(loaded_.ranks) + " ranks, here are " + std::to_string(ranks_));
      compared_.insert(named.name);
      return;
    }
    is_local_ = named.local;
    if (named.object.encode) compare_rest(named);
    // An optimizer compares its tensors itself.
    if (!named.object.tensors || named.object.encode) return;
    CheckpointObject::Tensors here = named.object.tensors();
    if (named.object.buffers) {
      for (auto& buffer : named.object.buffers()) here.push_back(std::move(buffer));
    }
    for (const auto& [name, tensor] : here) {
      if (!tensor.defined()) continue;
      compare_tensor(entry_of(entry_name(named.name, name), tensor), named.object.fixed);
    }
  }

  /// What no object here has.
  void find_extra(const std::vector<NamedObject>& objects) {
    for (const auto& [name, item] : loaded_.items) {
      if (known_.contains(name)) continue;
      const std::string object = name.substr(0, name.find('/'));
      bool open = object == "random" || compared_.contains(object);
      for (const NamedObject& named : objects) {
        open = open || (named.name == object && named.object.tensors && !named.object.fixed);
      }
      if (!open) add("\"" + name + "\" (" + form(item.entry) + ") is not here");
    }
  }

  /// Not all of a large model.
  std::string text() const {
    constexpr std::size_t kShown = 8;
    std::string all;
    for (std::size_t i = 0; i < lines_.size() && i < kShown; ++i) all += "\n    " + lines_[i];
    if (lines_.size() > kShown) {
      all += "\n    and " + std::to_string(lines_.size() - kShown) + " more";
    }
    return all;
  }

 private:
  static std::string form(const store::Entry& entry) {
    return entry.type.empty() ? describe_entry(entry) : entry.type;
  }

  void add(std::string line) { lines_.push_back(std::move(line)); }

  const store::Entry* find(const std::string& name, const std::string& form_here) {
    known_.insert(name);
    const auto found = loaded_.items.find(name);
    if (found != loaded_.items.end()) {
      const bool was_local = found->second.entry.rank >= 0;
      if (was_local == is_local_) return &found->second.entry;
      add("\"" + name + "\" was saved by " + (was_local ? "add_local()" : "add()") +
          ", which is not how it is added here");
      return nullptr;
    }
    add("\"" + name + "\" (" + form_here + ") is not in the checkpoint");
    return nullptr;
  }

  void compare_rest(const NamedObject& named) {
    const store::Entry* const saved = find(named.name, named.object.type);
    if (saved == nullptr || saved->type == named.object.type) return;
    add("\"" + named.name + "\" is " + form(*saved) + " in the checkpoint and " +
        named.object.type + " here");
  }

  void compare_tensor(const store::Entry& here, bool fixed) {
    const store::Entry* const saved = find(here.name, describe_entry(here));
    if (saved == nullptr || !fixed) return;
    if (saved->dtype == here.dtype && saved->shape == here.shape) return;
    add("\"" + here.name + "\" is " + form(*saved) + " in the checkpoint and " +
        describe_entry(here) + " here");
  }

  const LoadedCheckpoint& loaded_;
  const int ranks_;
  bool is_local_ = false;  ///< the object that is compared
  std::set<std::string> known_;
  std::set<std::string> compared_;  ///< objects of which the entries do not matter any more
  std::vector<std::string> lines_;
};

}  // namespace

std::string entry_name(const std::string& object, const std::string& tensor) {
  return tensor.empty() ? object : object + "/" + tensor;
}

std::string mismatch(const std::vector<NamedObject>& objects, const LoadedCheckpoint& loaded,
                     int ranks, const std::string& what) {
  return problem_of([&] {
    Differences differences(loaded, ranks);
    for (const NamedObject& named : objects) differences.compare(named);
    differences.find_extra(objects);
    const std::string text = differences.text();
    if (text.empty()) return;
    throw UsageError(what +
                     " is of another program or model. Add the objects that were saved, "
                     "constructed as they were, or choose another folder:" +
                     text);
  });
}

std::function<void(bool keep)> load_object(const NamedObject& named,
                                           const LoadedCheckpoint& loaded) {
  std::map<std::string, at::Tensor> tensors;
  std::string bytes;
  const std::string prefix = named.name + "/";
  for (const auto& [name, item] : loaded.items) {
    if (!item.values.defined()) continue;
    if (name == named.name && named.object.encode) {
      bytes.assign(static_cast<const char*>(item.values.const_data_ptr()), item.values.nbytes());
    } else if (name == named.name) {
      tensors.emplace("", item.values);
    } else if (name.starts_with(prefix)) {
      tensors.emplace(name.substr(prefix.size()), item.values);
    }
  }
  try {
    return named.object.load(tensors, bytes);
  } catch (...) {
    const std::string text = problem_of([] { throw; });
    throw UsageError("\"" + named.name + "\" cannot be loaded: " + text);
  }
}

}  // namespace ronde::detail
