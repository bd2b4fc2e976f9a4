// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <set>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "ronde/torch/objects.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {
namespace {

using store::Candidate;
using store::Sighting;

class Loader {
 public:
  Loader(const store::Store& store, const CheckpointLayout& layout)
      : store_(store), layout_(layout) {}

  std::optional<LoadedCheckpoint> newest() {
    std::string problems;
    std::vector<Candidate> candidates = collect_candidates();
    for (Candidate& candidate : candidates) {
      if (candidate.problem.empty()) read(candidate);
      if (candidate.problem.empty()) {
        LoadedCheckpoint loaded = receive(candidate);
        commit(candidate);
        return loaded;
      }
      const std::string text =
          "checkpoint " + folder_name(candidate.name) + " is not used: " + candidate.problem;
      if (layout_.rank == 0) rank_log(layout_.set).warning(text);
      problems += "\n  " + text;
    }
    if (problems.empty()) return std::nullopt;
    throw UsageError("ronde::Checkpoint::resume: no checkpoint in " + store_.folder().string() +
                     " can be used. Move the folder away to start anew:" + problems);
  }

 private:
  using Problems = c10::Dict<std::int64_t, std::string>;  // by part

  std::vector<Candidate> collect_candidates() {
    std::string mine;
    Statement seen;
    seen.problem = problem_of([&] {
      sightings_ = store_.scan();
      mine = encode_sightings(sightings_);
    });
    agree("ronde::Checkpoint::resume", seen, layout_.set);
    std::vector<std::vector<Sighting>> all;
    for (const c10::IValue& text : gather(mine)) {
      all.push_back(store::decode_sightings(text.toStringRef()));
    }
    return find_candidates(all, layout_.host_of);
  }

  std::vector<c10::IValue> gather(const c10::IValue& mine) const {
    return ronde::allgather_object(
        mine, {.name = layout_.subject + "/resume", .process_set = layout_.set});
  }

  /// Reads each part on one of the ranks that see it; after a failure the next one reads it.
  /// Afterwards the first of a part's readers has it.
  void read(Candidate& candidate) {
    parts_.clear();
    std::vector<std::size_t> open(candidate.readers.size());
    for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
    while (!open.empty() && candidate.problem.empty()) {
      Problems problems;
      for (const std::size_t i : open) {
        if (candidate.readers[i].front() != layout_.rank) continue;
        const std::string problem = problem_of([&] { parts_[i] = read_part(candidate, i); });
        if (!problem.empty()) problems.insert(static_cast<std::int64_t>(i), problem);
      }
      open = failed_parts(gather(problems), candidate);
    }
  }

  store::Part read_part(const Candidate& candidate, std::size_t i) const {
    const store::PartSummary& summary = candidate.manifest.parts[i];
    for (const bool committed : {true, false}) {
      for (const Sighting& sighting : sightings_) {
        const auto& parts = sighting.parts;
        const bool has_it = std::find(parts.begin(), parts.end(), summary.part) != parts.end();
        if (sighting.name == candidate.name && sighting.committed == committed && has_it) {
          return store_.read_part(sighting, summary);
        }
      }
    }
    throw Error("part " + std::to_string(summary.part) + " has vanished");
  }

  /// Passes failed parts on to their next readers, and returns them.
  std::vector<std::size_t> failed_parts(const std::vector<c10::IValue>& by_rank,
                                        Candidate& candidate) const {
    std::vector<std::size_t> failed;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      for (const auto& entry : by_rank[rank].to<Problems>()) {
        std::vector<int>& readers = candidate.readers.at(static_cast<std::size_t>(entry.key()));
        readers.erase(readers.begin());
        failed.push_back(static_cast<std::size_t>(entry.key()));
        if (readers.empty() && candidate.problem.empty()) {
          candidate.problem = "rank " + std::to_string(rank) + ": " + entry.value();
        }
      }
    }
    return failed;
  }

  /// Commits a folder that is still partial after a crash between two hosts' commits: the next save
  /// would remove it.
  void commit(const Candidate& candidate) const {
    const auto is_partial = [&](const Sighting& sighting) {
      return sighting.name == candidate.name && !sighting.committed;
    };
    if (!layout_.commits || std::none_of(sightings_.begin(), sightings_.end(), is_partial)) return;
    const std::string problem = problem_of([&] { store_.commit(candidate.manifest); });
    if (!problem.empty()) rank_log(layout_.set).warning("ronde::Checkpoint::resume: " + problem);
  }

  LoadedCheckpoint receive(const Candidate& candidate) {
    LoadedCheckpoint loaded{.name = candidate.name,
                            .ranks = static_cast<int>(candidate.manifest.ranks)};
    for (std::size_t i = 0; i < candidate.readers.size(); ++i) {
      const store::PartSummary& summary = candidate.manifest.parts[i];
      const BroadcastOptions options{.name = layout_.subject + "/part",
                                     .root = candidate.readers[i].front(),
                                     .process_set = layout_.set};
      store::Part& part = parts_[i];  // empty except on the reader
      ronde::broadcast_object(part.index, options);
      Statement room;
      room.problem = problem_of([&] { part.data.resize(summary.bytes); });
      if (!room.problem.empty()) {
        room.problem = "no memory for " + std::to_string(summary.bytes) + " bytes";
      }
      agree("ronde::Checkpoint::resume", room, layout_.set);
      // The tensor owns the bytes, as after a group error the backend may still use them.
      const auto data = std::make_shared<std::string>(std::move(part.data));
      broadcast_(at::from_blob(
                     data->data(), {static_cast<std::int64_t>(summary.bytes)}, [data](void*) {},
                     at::kByte),
                 options);
      add_items(loaded, part.index, *data);
      parts_.erase(i);
    }
    return loaded;
  }

  void add_items(LoadedCheckpoint& loaded, const std::string& index,
                 const std::string& data) const {
    Statement decoded;
    decoded.problem = problem_of([&] {
      for (store::Entry& entry : store::decode_index(index, data.size())) {
        const bool others = entry.rank >= 0 && entry.rank != layout_.rank;
        LoadedCheckpoint::Item& item = loaded.items[entry.name];
        if (others && item.values.defined()) continue;
        if (!others) item.values = tensor_of(entry, data);
        item.entry = std::move(entry);
      }
    });
    agree("ronde::Checkpoint::resume", decoded, layout_.set);
  }

  const store::Store& store_;
  const CheckpointLayout& layout_;
  std::vector<Sighting> sightings_;
  std::map<std::size_t, store::Part> parts_;  // read by this rank
};

/// Collects differences between the checkpoint and the program's objects.
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
    // Optimizers check their tensors when loading.
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

  /// Adds entries that no object here has.
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

  /// Returns the first differences.
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
  std::set<std::string> compared_;  ///< objects whose entries are not compared any more
  std::vector<std::string> lines_;
};

}  // namespace

std::optional<LoadedCheckpoint> load_newest(const store::Store& store,
                                            const CheckpointLayout& layout) {
  return Loader(store, layout).newest();
}

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
