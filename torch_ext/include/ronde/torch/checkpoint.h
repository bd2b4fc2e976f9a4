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
  /// Number of complete checkpoints to keep; 0 keeps all. With at least two, resume() can fall back
  /// if the newest is damaged.
  int keep = 2;
  /// True: the ranks divide the objects that are equal on all, and each writes its part. False:
  /// rank 0 writes everything; the others need no folder.
  bool sharded = true;
  /// 1: a rank on another host also writes each part, so that losing a host needs no shared file
  /// system. 0: no copies.
  int replicate = 0;
  /// False: save() returns once the checkpoint is complete.
  bool asynchronous = true;
  /// Keeps the states of each rank's default random generators (CPU and CUDA). Resumed with another
  /// number of ranks, they are seeded anew.
  bool random_state = true;
  /// Lets a run that did not resume save into a folder with checkpoints of another run, which are
  /// removed by `keep`.
  bool overwrite = false;
  /// The signals that should_stop() reports, such as {SIGTERM}. The program's own handler of such a
  /// signal still runs. One that it installs later replaces Ronde's, and must call the handler that
  /// it replaced if both are to run.
  std::vector<int> stop_signals = {};
  /// The ranks that train together, all by default; this one is among them.
  ProcessSet process_set = {};
};

/// Saves and restores the state of a training run:
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
/// save() copies this rank's part and returns; a thread writes it while training continues. A
/// checkpoint is valid once all parts are durable: a program that is killed meanwhile resumes from
/// the one before. docs/checkpoints.md describes the files.
///
/// The constructor, save(), resume(), wait() and should_stop() are collective. Objects must outlive
/// the Checkpoint. shutdown() waits for the last save, and throws Error if it has failed. The
/// destructor waits for it, too, and logs a failure. Thread-safety: none; use it on the thread that
/// trains.
class Checkpoint {
 public:
  /// Creates the folder on every rank that writes. Hosts may use different folders, but a folder
  /// belongs to one job: two that save into it get an error, and lose nothing. Throws UsageError on
  /// all ranks if one cannot create it or options are invalid.
  explicit Checkpoint(const std::filesystem::path& folder, CheckpointOptions options = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Adds an object that is equal on all ranks: one that ronde/torch/objects.h accepts, a number, a
  /// scheduler of LibTorch or Ronde, GradScaler, a DistributedOptimizer (its inner optimizer), or
  /// any type with save() and load(). Objects are loaded in this order. `name` must be new.
  template <typename T>
  Checkpoint& add(const std::string& name, T& object) {
    return add_checked(name, object, /*local=*/false);
  }

  /// Adds an object that is each rank's own (an expert, statistics). Such a checkpoint can only be
  /// resumed with the same number of ranks.
  template <typename T>
  Checkpoint& add_local(const std::string& name, T& object) {
    return add_checked(name, object, /*local=*/true);
  }

  /// Adds a sampler with the position of your loop, in samples of this epoch over all ranks: a
  /// loader with workers prefetches, so that the sampler is ahead of the loop.
  Checkpoint& add(const std::string& name, DistributedSampler& sampler,
                  std::function<std::size_t()> position);

  /// Saves the objects in their current state as `step`, 0 or more. Waits for the last save first;
  /// if it failed (a full disk, say), throws UsageError on all ranks with each failed rank's text,
  /// but saves this step nevertheless: training can continue. Also throws UsageError on all ranks
  /// if their objects differ, one cannot be saved, or the folder has checkpoints of another run
  /// that this one did not resume. Does nothing for the step that was saved last. GroupError.
  void save(std::int64_t step);

  /// Loads the newest checkpoint that is complete for all ranks, wherever its parts are, and
  /// returns its step; nothing if there is none. Skips damaged ones with a warning; they stay until
  /// `keep` newer ones are complete. Modules and tensors, also expanded ones, keep their memory.
  /// Throws UsageError on all ranks, and changes nothing, if objects are missing in the checkpoint,
  /// unknown here, of other shapes, or cannot be loaded on one rank, if a newer Ronde wrote it, or
  /// if all are damaged. GroupError.
  std::optional<std::int64_t> resume();

  /// Waits until the last save is complete, and throws what save() throws.
  void wait();

  /// Returns whether a rank got one of the stop signals: the same answer on all ranks at the same
  /// call, at the latest in the second call after the signal. Costs a small allreduce that runs
  /// during the step. The same signal again, a second later or more, ends the process, after
  /// running the program's handler if there is one.
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
  /// Factor for the learning rate, as steps have `total` samples instead of those asked for; 1 if
  /// the batch divides evenly.
  double rate_factor = 1;
};

/// Divides a batch of `total` samples among the ranks, in the fewest passes of equal batches of at
/// most `largest` samples, so that a run keeps its batch with another number of ranks. Chooses the
/// nearest batch that divides by the ranks. Throws UsageError if there are fewer samples than
/// ranks.
BatchShare share_batch(std::int64_t total, std::int64_t largest, ProcessSet process_set = {});

}  // namespace ronde
