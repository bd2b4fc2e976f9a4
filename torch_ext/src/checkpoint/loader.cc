// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "ronde/torch/objects.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/rank_log.h"
#include "torch_ext/src/state/object_bytes.h"
#include "torch_ext/src/store/candidates.h"

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
    std::vector<Candidate> candidates = look();
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

  std::vector<Candidate> look() {
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

  /// Each part is read by one of the ranks that see it; those that fail are read by the next one.
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

  /// A crash may have come between two hosts' commits. The next save would remove the folder that
  /// is still partial.
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
      store::Part& part = parts_[i];  // empty but on the reader
      ronde::broadcast_object(part.index, options);
      Statement room;
      room.problem = problem_of([&] { part.data.resize(summary.bytes); });
      if (!room.problem.empty()) {
        room.problem = "no memory for " + std::to_string(summary.bytes) + " bytes";
      }
      agree("ronde::Checkpoint::resume", room, layout_.set);
      // The tensor owns the bytes: after a group error the backend may outlive this call.
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
  std::map<std::size_t, store::Part> parts_;  // those that this rank has read
};

}  // namespace

std::optional<LoadedCheckpoint> load_newest(const store::Store& store,
                                            const CheckpointLayout& layout) {
  return Loader(store, layout).newest();
}

}  // namespace ronde::detail
