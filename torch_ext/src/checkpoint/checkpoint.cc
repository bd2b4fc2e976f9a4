// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/checkpoint.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/utils.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/src/base/system.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/run.h"
#include "ronde/torch/objects.h"
#include "ronde/torch/random.h"
#include "torch_ext/src/checkpoint/loader.h"
#include "torch_ext/src/checkpoint/stop_signals.h"
#include "torch_ext/src/checkpoint/writer.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace {

using detail::CheckpointLayout;
using detail::CheckpointObject;
using detail::NamedObject;
using detail::Piece;
using detail::Statement;

const char* const kRandom = "random";
const std::string kPrefix = "ronde::Checkpoint: ";

CheckpointOptions checked(CheckpointOptions options) {
  const auto refuse = [&](const std::string& text) {
    throw UsageError(detail::rank_prefix(options.process_set) + "ronde::Checkpoint: " + text);
  };
  if (options.keep < 0) refuse("keep is " + std::to_string(options.keep) + ". Give 0 for all");
  if (options.replicate != 0 && options.replicate != 1) {
    refuse("replicate is " + std::to_string(options.replicate) + ". Give 0 or 1");
  }
  return options;
}

/// Returns an absolute path, as the program may change its current folder; empty if there is none.
std::filesystem::path absolute_path(const std::filesystem::path& folder) {
  std::error_code none;
  return folder.empty() ? folder : std::filesystem::absolute(folder, none);
}

/// A span of another layer than ronde::Span; an empty one after shutdown().
RuntimeSpan span_of(std::string_view name, ProcessSet set) try {
  return {runtime_of(set), name};
} catch (const UsageError&) {
  return {};
}

CheckpointLayout make_layout(const CheckpointOptions& options) {
  detail::check_member("ronde::Checkpoint", options.process_set);
  CheckpointLayout layout{
      .set = options.process_set,
      .subject = detail::numbered_name("ronde::Checkpoint/", options.process_set),
      .rank = rank_in(options.process_set).value(),
      .sharded = options.sharded,
      .replicated = options.replicate > 0};
  layout.host_of.clear();
  const std::vector<int>& hosts = runtime_of(options.process_set).topology().host_of;
  for (const int member : ranks_of(options.process_set)) {
    layout.host_of.push_back(hosts.at(static_cast<std::size_t>(member)));
  }
  layout.size = static_cast<int>(layout.host_of.size());
  return layout;
}

}  // namespace

class Checkpoint::Impl {
 public:
  Impl(const std::filesystem::path& folder, CheckpointOptions options)
      : log_(detail::rank_log(options.process_set)),
        options_(checked(std::move(options))),
        layout_(make_layout(options_)),
        store_(absolute_path(folder),
               [set = layout_.set](auto name) { return span_of(name, set); }),
        writer_(store_, layout_, options_.keep),
        stop_(options_.stop_signals, layout_.subject + "/stop", layout_.set) {
    agree_on_run();
    if (options_.random_state) {
      objects_.push_back(
          {kRandom, detail::checkpoint_object_of_generators(layout_.set), /*local=*/true});
    }
    hook_ = add_shutdown_hook(
        [this] {
          try {
            finish_last();
          } catch (const std::exception& error) {
            log_.error(error.what());  // shutdown() may have more to throw than this
            throw;
          }
        },
        layout_.set);
  }

  ~Impl() {
    remove_shutdown_hook(hook_, layout_.set);
    try {
      finish_last();
    } catch (const std::exception& error) {
      log_.error(error.what());
    }
  }

  void add(const std::string& name, CheckpointObject object, bool local) {
    const auto same = [&](const NamedObject& other) { return other.name == name; };
    if (name.empty() || name.find('/') != std::string::npos || name == kRandom ||
        std::any_of(objects_.begin(), objects_.end(), same)) {
      throw UsageError(detail::rank_prefix(layout_.set) + "ronde::Checkpoint::add(\"" + name +
                       "\"): give each object a name of its own, without \"/\", other than \"" +
                       kRandom + "\"");
    }
    objects_.push_back({name, std::move(object), local});
  }

  void save(std::int64_t step) {
    if (step < 0) {
      throw UsageError(detail::rank_prefix(layout_.set) + "ronde::Checkpoint::save(" +
                       std::to_string(step) + "): steps are numbered from 0");
    }
    if (step == saved_step_) return wait();
    const Span span("save checkpoint", layout_.set);
    saved_step_ = kNone;
    Statement last, mine;
    last.problem = writer_.finish();
    std::vector<Piece> pieces;
    mine.problem = detail::problem_of([&] { mine.lines = plan(step, pieces); });
    try {
      detail::agree("ronde::Checkpoint::save", mine, layout_.set,
                    {.advice = "Save the same step and the same objects on every rank, and add "
                               "those that differ by add_local()"});
    } catch (...) {
      if (!last.problem.empty()) log_.error(kPrefix + last.problem);
      throw;
    }
    pieces_ = std::move(pieces);
    saved_step_ = step;
    writer_.start({sequence_++, step, run_}, pieces_);
    // Thrown after this save has started: a program that ends by the error may be at its last step.
    detail::agree("ronde::Checkpoint::save", last, layout_.set);
    if (!options_.asynchronous) wait();
  }

  void wait() {
    const std::int64_t saved = std::exchange(saved_step_, kNone);
    Statement mine;
    mine.problem = writer_.finish();
    detail::agree("ronde::Checkpoint::wait", mine, layout_.set);
    saved_step_ = saved;
  }

  std::optional<std::int64_t> resume() {
    wait();
    const std::optional<detail::LoadedCheckpoint> loaded = detail::load_newest(store_, layout_);
    if (loaded) apply(*loaded);
    others_newest_.clear();
    if (!loaded) return std::nullopt;
    saved_step_ = loaded->name.step;
    writer_.set_passed_over({loaded->name.sequence, sequence_});
    note_checkpoint(loaded->name.step, layout_.set);
    return loaded->name.step;
  }

  bool should_stop() { return stop_.agreed(); }

 private:
  static constexpr std::int64_t kNone = -1;

  /// Waits for the save in progress, and throws Error if it has failed.
  void finish_last() {
    const std::string problem = writer_.finish();
    if (!problem.empty()) throw Error(kPrefix + problem);
  }

  /// A rank's report about its folder: the place, empty if it does not write; the highest sequence
  /// and the newest checkpoint there; and a name for the run.
  using FolderReport = std::tuple<std::string, std::int64_t, std::string, std::string>;

  /// Creates the folders, and agrees on the name of this run and on the ranks that commit.
  void agree_on_run() {
    std::string my_place, my_newest, my_run;
    std::int64_t my_sequence = 0;
    Statement made;
    made.problem = detail::problem_of([&] {
      if (store_.folder().empty()) {
        throw UsageError("the path of the folder is empty, or the current folder is gone");
      }
      if (layout_.writes()) {
        my_place = std::to_string(layout_.host_of[static_cast<std::size_t>(layout_.rank)]) + ":" +
                   store_.prepare();
      }
      for (const store::Sighting& sighting : store_.scan()) {
        my_sequence = std::max(my_sequence, sighting.name.sequence);
        if (sighting.committed) my_newest = std::max(my_newest, folder_name(sighting.name));
      }
      my_run = to_hex(random_bytes(4));
    });
    made.lines = {"keep " + std::to_string(options_.keep),
                  "sharded " + std::to_string(options_.sharded),
                  "replicate " + std::to_string(options_.replicate),
                  "asynchronous " + std::to_string(options_.asynchronous)};
    detail::agree("ronde::Checkpoint", made, layout_.set, {.advice = "Give equal options"});
    const std::vector<c10::IValue> all =
        allgather_object(c10::IValue(FolderReport(my_place, my_sequence, my_newest, my_run)),
                         {.name = layout_.subject + "/folders", .process_set = layout_.set});
    layout_.commits = !my_place.empty();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto [place, sequence, newest, run] = all[rank].to<FolderReport>();
      if (rank == 0) run_ = run;
      sequence_ = std::max(sequence_, sequence + 1);
      others_newest_ = std::max(others_newest_, newest);
      if (static_cast<int>(rank) < layout_.rank && place == my_place) layout_.commits = false;
    }
    writer_.set_first(sequence_);
    if (layout_.replicated && layout_.copier(0) < 0 && layout_.rank == 0) {
      log_.warning(
          "ronde::Checkpoint: all ranks are on one host: parts are not copied to another one");
    }
  }

  /// Returns a line for each item, for the ranks to compare, and copies this rank's into `pieces`.
  std::vector<std::string> plan(std::int64_t step, std::vector<Piece>& pieces) {
    if (layout_.rank == 0 && !others_newest_.empty() && !options_.overwrite) {
      throw UsageError(store_.folder().string() + " has checkpoints of another run (" +
                       others_newest_ + "). Call resume() first, or choose another folder");
    }
    if (objects_.empty()) throw UsageError("nothing was added");
    std::vector<std::string> lines = {"step " + std::to_string(step)};
    std::vector<Item> items;
    for (const NamedObject& named : objects_) list_items(named, items);
    std::vector<std::uint64_t> divided;
    for (const Item& item : items) {
      if (item.is_divided()) divided.push_back(item.entry.bytes);
    }
    const std::vector<int> owners = detail::divide_among_ranks(divided, layout_.size);
    auto next = owners.begin();
    for (const Item& item : items) {
      const int owner = item.named->local ? layout_.rank : item.is_divided() ? *next++ : 0;
      if (!item.named->local) lines.push_back(item.line());
      if (owner == layout_.rank) pieces.push_back(copy(item));
    }
    return lines;
  }

  struct Item {
    const NamedObject* named = nullptr;
    store::Entry entry;
    at::Tensor tensor;      ///< undefined: the object's bytes
    bool is_equal = false;  ///< on all ranks

    /// Items that may differ between ranks are all written by rank 0.
    bool is_divided() const { return is_equal && !named->local; }
    std::string line() const {
      return entry.name + ": " + (tensor.defined() ? detail::describe_entry(entry) : entry.type);
    }
  };

  static void list_items(const NamedObject& named, std::vector<Item>& items) {
    if (named.object.encode) {
      items.push_back({&named, {.name = named.name, .type = named.object.type}, {}, false});
    }
    for (const bool is_equal : {true, false}) {
      const auto& tensors = is_equal ? named.object.tensors : named.object.buffers;
      if (!tensors) continue;
      for (const auto& [name, tensor] : tensors()) {
        if (!tensor.defined()) continue;
        const std::string full = detail::entry_name(named.name, name);
        items.push_back({&named, detail::entry_of(full, tensor), tensor, is_equal});
      }
    }
  }

  /// Reuses the memory of the last checkpoint, which saves page faults.
  Piece copy(const Item& item) {
    // Memory of inference mode could not be written by a save() outside of it.
    const c10::InferenceMode no_inference(false);
    const torch::NoGradGuard no_grad;
    Piece piece{.entry = item.entry};
    if (item.named->local) piece.entry.rank = layout_.rank;
    if (!item.tensor.defined()) {
      auto bytes = std::make_shared<std::string>(item.named->object.encode());
      piece.values = at::from_blob(
          bytes->data(), {static_cast<std::int64_t>(bytes->size())}, [bytes](void*) {}, at::kByte);
      piece.entry.dtype = "Byte";
      piece.entry.shape = piece.values.sizes().vec();
      piece.entry.bytes = bytes->size();
      return piece;
    }
    at::Tensor& memory = memory_[item.entry.name];
    if (!memory.defined() || memory.sizes() != item.tensor.sizes() ||
        memory.scalar_type() != item.tensor.scalar_type()) {
      memory = at::empty(item.tensor.sizes(), item.tensor.scalar_type());
    }
    memory.copy_(item.tensor);
    piece.values = memory;
    return piece;
  }

  void apply(const detail::LoadedCheckpoint& loaded) {
    const std::string subject = "ronde::Checkpoint::resume";
    const std::string what = "checkpoint " + folder_name(loaded.name);
    const bool same_ranks = loaded.ranks == layout_.size;
    const bool has_random = loaded.items.contains(detail::entry_name(kRandom, "cpu"));
    std::vector<NamedObject> wanted = objects_;
    if (options_.random_state && !(same_ranks && has_random)) wanted.erase(wanted.begin());
    // The problem is equal on all ranks; otherwise agree() reports the difference.
    Statement matched;
    const std::string problem = detail::mismatch(wanted, loaded, layout_.size, what);
    if (!problem.empty()) matched.lines = {problem};
    detail::agree(subject, matched, layout_.set);
    if (!problem.empty()) throw UsageError(subject + ": " + problem);
    load_all(subject, wanted, loaded);
    if (options_.random_state && !same_ranks) {
      torch::manual_seed(rank_seed(static_cast<std::uint64_t>(loaded.name.step), layout_.rank));
    }
    if (layout_.rank == 0) {
      log_.info("resumed from " + what + " of " + std::to_string(loaded.ranks) + " ranks in " +
                store_.folder().string());
    }
  }

  /// Loads all objects on all ranks, or none.
  void load_all(const std::string& subject, const std::vector<NamedObject>& wanted,
                const detail::LoadedCheckpoint& loaded) {
    std::vector<std::function<void(bool)>> finish;
    Statement decoded;
    try {
      decoded.problem = detail::problem_of([&] {
        for (const NamedObject& named : wanted) {
          finish.push_back(detail::load_object(named, loaded));
        }
      });
      detail::agree(subject, decoded, layout_.set);
    } catch (...) {
      for (auto it = finish.rbegin(); it != finish.rend(); ++it) {
        const std::string problem = detail::problem_of([&] { (*it)(/*keep=*/false); });
        if (!problem.empty()) log_.error(kPrefix + "an object cannot be set back: " + problem);
      }
      throw;
    }
    for (const auto& function : finish) function(/*keep=*/true);
  }

  const Logger log_;  ///< also after shutdown()
  const CheckpointOptions options_;
  CheckpointLayout layout_;
  const store::Store store_;
  detail::CheckpointWriter writer_;
  detail::StopSignals stop_;
  std::uint64_t hook_ = 0;
  std::vector<NamedObject> objects_;
  std::string run_;
  std::int64_t sequence_ = 1;
  std::int64_t saved_step_ = kNone;  ///< not to be saved again
  std::string others_newest_;        ///< another run's newest checkpoint, until resume()
  std::vector<Piece> pieces_;        ///< being written
  std::map<std::string, at::Tensor> memory_;
};

Checkpoint::Checkpoint(const std::filesystem::path& folder, CheckpointOptions options)
    : impl_(std::make_unique<Impl>(folder, std::move(options))) {}

Checkpoint::~Checkpoint() = default;

void Checkpoint::add_object(const std::string& name, CheckpointObject object, bool local) {
  impl_->add(name, std::move(object), local);
}

Checkpoint& Checkpoint::add(const std::string& name, DistributedSampler& sampler,
                            std::function<std::size_t()> position) {
  detail::ObjectCodec codec = detail::codec_of_members(sampler);
  codec.encode = [&sampler, position = std::move(position)] {
    return detail::bytes_of_archive(
        [&](torch::serialize::OutputArchive& archive) { sampler.save(archive, position()); });
  };
  add_object(name, detail::checkpoint_object_of(std::move(codec)), /*local=*/false);
  return *this;
}

void Checkpoint::save(std::int64_t step) {
  impl_->save(step);
}

std::optional<std::int64_t> Checkpoint::resume() {
  return impl_->resume();
}

void Checkpoint::wait() {
  impl_->wait();
}

bool Checkpoint::should_stop() {
  return impl_->should_stop();
}

}  // namespace ronde
