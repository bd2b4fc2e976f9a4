// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "ronde/topology.h"
#include "tools/bench/base/bench_options.h"
#include "tools/bench/base/gpu_pages.h"
#include "tools/bench/base/report.h"
#include "tools/bench/base/ring.h"
#include "tools/bench/subjects/peers.h"
#include "tools/bench/subjects/raw_subject.h"

namespace ronde::tool {

/// The time of each of several calls, in microseconds.
using Samples = std::vector<double>;

/// The smallest sample that at least `share` of all do not exceed (the nearest rank, no
/// interpolation). At least one sample.
double percentile(Samples samples, double share);
double median(const Samples& samples);

/// One of several ways to do the same thing.
struct Contender {
  std::function<void()> call;
  std::function<void()> prepare = [] {};  ///< before each call, not timed
};

/// Lets the contenders take turns, `warmup` + `iterations` times, and returns the samples of each
/// of the later ones: all of them meet what the machine does for a while. Who begins changes from
/// turn to turn. All ranks begin a call together, after a barrier of MPI's; a sample is the longest
/// time of all ranks. Collective.
std::vector<Samples> take_turns(Peers& peers, const std::vector<Contender>& contenders, int warmup,
                                int iterations);

/// Something failed on at least one rank, and every rank throws this.
class CommonError : public Error {
 public:
  using Error::Error;
};

/// A run of one benchmark on all ranks, from meeting to parting.
///
/// Thread-safety: one thread.
class Session {
 public:
  /// Collective. Throws UsageError and GroupError as ronde::init() does.
  explicit Session(const BenchOptions& options, GpuAccess access = {});

  const BenchOptions& options() const { return options_; }
  const Topology& topology() const;
  std::size_t rotate_bytes() const;
  Peers& peers() { return *peers_; }
  /// The subject of the measurement: the engine, or a backend alone.
  Subject& subject() { return *subject_; }
  /// A backend alone; only where options().raw.
  RawSubject& raw() { return *raw_; }
  /// Null where it was not asked for, and where MPI did not start the ranks.
  Subject* baseline() { return baseline_.get(); }

  /// The text of the first rank whose text is not empty; empty if there is none. Collective.
  std::string first_of(const std::string& text);

  /// Calls `action`, which may fail on some ranks only. If it does, every rank throws CommonError
  /// (or UsageError, if that was it) with the words of the first that failed.
  void alike(const std::function<void()>& action);

  /// Memory of options().device for buffers. May fail on this rank alone.
  std::unique_ptr<Pages> make_pages(std::size_t bytes) const;

  /// A report that prints on rank 0.
  Report report() const;
  /// "2 ranks on 1 host, backend shm"; says so where MPI cannot be compared with.
  std::string description() const;

  /// Throws UsageError on every rank if the file of --json cannot be written, before time is spent
  /// on measuring. Collective.
  void open_json();
  /// Where there is a baseline, adds the regime of the machine to all rows: "near" if plain MPI
  /// takes less than 250 us for an allreduce of 1 MiB in place (the cores share a cache), else
  /// "far". Then writes the file of --json. Collective.
  void finish(Report& report);

  /// Leaves together with the other ranks.
  void close();

 private:
  double microseconds_of_plain_mpi();

  const BenchOptions options_;
  const GpuAccess access_;
  std::unique_ptr<Subject> subject_;
  RawSubject* raw_ = nullptr;  ///< subject_, where it is one
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Subject> baseline_;
  std::ofstream json_;
};

}  // namespace ronde::tool
