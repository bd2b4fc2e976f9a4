// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/checkpoint_object.h"
#include "ronde/torch/distributed_sampler.h"

namespace ronde {

/// Options of Checkpoint. Equal on all ranks.
struct CheckpointOptions {
  /// How many complete checkpoints stay, 0: all. With at least two there is one to fall back on
  /// where the newest is damaged.
  int keep = 2;
  /// True: the ranks divide what is equal on all of them, and each writes its part. False: rank 0
  /// writes everything; the others need no folder.
  bool sharded = true;
  /// 1: each part is also on the disk of a rank on another host, so that no shared file system is
  /// needed for the loss of a host. 0: it is not.
  int replicate = 0;
  /// False: save() returns once the checkpoint is complete.
  bool asynchronous = true;
  /// Keeps the states of each rank's default random generators (CPU and CUDA). Resumed with another
  /// number of ranks, they are seeded anew.
  bool random_state = true;
  /// Lets a run that did not resume save into a folder with checkpoints of another run, which go as
  /// `keep` says.
  bool overwrite = false;
  /// What should_stop() tells of, such as {SIGTERM}. The program's own handler of such a signal
  /// still runs. One that it installs later takes Ronde's place, and calls what it replaced if both
  /// are to run.
  std::vector<int> stop_signals = {};
  /// The ranks that train together, all by default; this one is among them.
  ProcessSet process_set = {};
};

/// Saves the state of a training run, and takes it up again:
///
///     ronde::Checkpoint checkpoint("checkpoints", {.stop_signals = {SIGTERM}});
///     checkpoint.add("net", net).add("adam", adam).add("warmup", warmup).add("sampler", sampler);
///     std::int64_t step = checkpoint.resume().value_or(0);
///     for (...) {
///       ...
///       ++step;
///       if (step % 1000 == 0) checkpoint.save(step);
///       if (checkpoint.should_stop()) { checkpoint.save(step); break; }
///     }
///     checkpoint.wait();  // throws if the last save failed
///
/// save() copies this rank's part and returns; a thread writes it while training goes on. A
/// checkpoint counts once all parts are durable: a program that is killed meanwhile resumes from
/// the one before. docs/checkpoints.md describes the files.
///
/// The constructor, save(), resume(), wait() and should_stop() are collective. Objects must outlive
/// the Checkpoint. shutdown() waits for the last save, and throws Error if it has failed. The
/// destructor waits for it, too, and logs a failure. Thread-safety: none; use it on the thread that
/// trains.
class Checkpoint {
 public:
  /// Makes the folder, on every rank that writes. It may be another one on every host, but belongs
  /// to one job: two that save into it are told, and lose nothing. Throws
  /// UsageError on all ranks where that is impossible on one, or options make no sense.
  explicit Checkpoint(const std::filesystem::path& folder, CheckpointOptions options = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Adds an object that is equal on all ranks: what ronde/torch/objects.h takes, a number,
  /// LibTorch's and Ronde's schedulers, GradScaler, a DistributedOptimizer (its inner optimizer),
  /// and every type with save() and load(). Loaded in this order. `name` must be new.
  template <typename T>
  Checkpoint& add(const std::string& name, T& object) {
    return add_checked(name, object, /*local=*/false);
  }

  /// Adds an object that each rank has by itself (an expert, statistics). Such a checkpoint fits
  /// the same number of ranks only.
  template <typename T>
  Checkpoint& add_local(const std::string& name, T& object) {
    return add_checked(name, object, /*local=*/true);
  }

  /// Adds a sampler whose position is that of your loop: samples of this epoch, over all ranks. A
  /// loader with workers prefetches, so that the sampler is ahead of the loop.
  Checkpoint& add(const std::string& name, DistributedSampler& sampler,
                  std::function<std::size_t()> position);

  /// Saves what was added, as of now, as `step`, 0 or more. Waits for the last save first, and
  /// throws what became of it: UsageError on all ranks, with each failed rank's words (a full disk,
  /// for instance). Training can go on then: this step is saved even so. Also throws
  /// UsageError on all ranks where the ranks' objects differ, where one cannot be saved, or where
  /// the folder has checkpoints of another run that this one did not resume. Does nothing for the
  /// step that was saved last. GroupError.
  void save(std::int64_t step);

  /// Loads the newest checkpoint that is complete for all ranks, wherever its parts are, and
  /// returns its step; nothing where there is none. Damaged ones are passed over, with a warning,
  /// and stay until `keep` newer ones are complete.
  /// Modules and tensors take the values into the memory that they have, expanded ones included.
  /// Throws UsageError on all ranks, and changes nothing, if objects are missing in it, unknown
  /// here, of other shapes, or cannot be loaded on one rank, if it was written by a newer Ronde, or
  /// if none is whole. GroupError.
  std::optional<std::int64_t> resume();

  /// Waits until the last save is complete, and throws what save() throws.
  void wait();

  /// Whether a rank got one of the stop signals: the same answer on all ranks at the same call, at
  /// the latest in the second call after the signal. It costs a small allreduce that travels during
  /// the step. The same signal again, a second later or more, ends the process, also where the
  /// program has a handler, which runs first.
  bool should_stop();

 private:
  template <typename T>
  Checkpoint& add_checked(const std::string& name, T& object, bool local) {
    static_assert(detail::CheckpointedObject<T>,
                  "ronde::Checkpoint keeps numbers, schedulers, what ronde/torch/objects.h lists, "
                  "and types with save(OutputArchive&) const and load(InputArchive&)");
    if constexpr (detail::CheckpointedObject<T>) {
      add_object(name, detail::checkpoint_object(object), local);
    }
    return *this;
  }
  void add_object(const std::string& name, detail::CheckpointObject object, bool local);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// How the ranks share a batch.
struct BatchShare {
  std::int64_t batch = 0;  ///< samples of a rank in one backward pass
  int passes = 1;          ///< backward passes of a step: backward_passes_per_step
  std::int64_t total = 0;  ///< samples of a step, over all ranks and passes
  /// What the learning rate is multiplied by for steps of `total` samples instead of those asked
  /// for; 1 where the batch divides.
  double rate_factor = 1;
};

/// Divides a batch of `total` samples so that it stays what it was with another number of ranks:
/// with as few passes as batches of at most `largest` samples allow, and all equally large. Where
/// it does not divide by the ranks, the nearest batch that does. Throws UsageError where there are
/// fewer samples than ranks.
BatchShare share_batch(std::int64_t total, std::int64_t largest, ProcessSet process_set = {});

}  // namespace ronde
