// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ronde/error.h"
#include "ronde/topology.h"
#include "tools/bench/gpu_access.h"
#include "tools/bench/options.h"
#include "tools/bench/peers.h"
#include "tools/bench/raw_subject.h"
#include "tools/bench/report.h"
#include "tools/bench/ring.h"
#include "tools/bench/subject.h"

namespace ronde::tool {

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
  /// What is measured: the engine, or a backend alone.
  Subject& subject() { return *subject_; }
  /// A backend alone; only where options().raw.
  RawSubject& raw() { return *raw_; }
  /// Null where it was not asked for, and in a build without MPI.
  Subject* baseline() { return baseline_.get(); }

  /// Calls `action`, which may fail on some ranks only. If it does, every rank throws CommonError
  /// (or UsageError, if that was it) with the words of the first that failed.
  void alike(const std::function<void()>& action);

  /// Memory of options().device for buffers. May fail on this rank alone.
  std::unique_ptr<Pages> make_pages(std::size_t bytes) const;

  /// A report that speaks on rank 0.
  Report report(std::span<const Column> columns) const;
  /// "2 ranks on 1 host, backend shm".
  std::string description() const;

  /// Throws UsageError on every rank if the file of --json cannot be written, before time is spent
  /// on measuring. Collective.
  void open_json();
  /// Collective.
  void write_json(const Report& report);

  /// Leaves together with the other ranks.
  void close();

 private:
  const BenchOptions options_;
  const GpuAccess access_;
  std::unique_ptr<RawSubject> raw_;  ///< where subject_ is one
  Subject* subject_ = nullptr;
  std::unique_ptr<Subject> engine_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Subject> baseline_;
  std::ofstream json_;
};

}  // namespace ronde::tool
