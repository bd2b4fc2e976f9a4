// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

/// The groups of an elastic job, one after the other. Programs of LibTorch use
/// ronde/torch/elastic.h, which also keeps their state; this is below it.
namespace ronde {

/// The ranks of a group of an elastic job.
struct Members {
  int number = 0;          ///< of the group within the job, from 1
  std::vector<int> slots;  ///< by rank: its place in the job, which a replacement takes over

  /// The slot of this process.
  int own_slot = 0;
};

/// Options of reform(). Equal on all ranks.
struct ReformOptions {
  /// The job ends where fewer ranks are left; `ronde run --min-ranks` goes before it.
  int min_ranks = 1;
};

/// Whether `ronde run --elastic` has started this process.
bool is_elastic() noexcept;

/// Ends the group of ronde::init(), if this process is in one, and starts the next one: in place of
/// ronde::init(), and again after each GroupError. Returns once every process of the job has called
/// it or ended, and those that called it have met. Slots keep their order, ranks are numbered anew.
/// Process sets, prepared operations and Works of the last group are void. A start in which a rank
/// is lost is repeated without it. Throws UsageError in a process that `ronde run --elastic` has
/// not started, or where ronde::init() does; Error if the launcher is gone.
Members reform(const ReformOptions& options = {});

/// Whether processes that have come later wait to join this one's group. One rank is told: it calls
/// ronde::abort() between two steps, and all call reform(). Never blocks; false where the job is
/// not elastic.
bool reform_is_wanted();

/// Leaves the job, which goes on without this process and starts none in its place: in place of
/// ronde::shutdown(). The group fails for the others, which call reform(). Throws as reform().
void leave_job();

/// The job ends once this process has, and no process is started in the place of another: for a
/// rank of which no replacement could go on, as where job_goes_on() and no rank has the state. The
/// launcher says `why`. Throws as reform().
void fail_job(const std::string& why);

}  // namespace ronde
