// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "tools/prof/base/files.h"
#include "tools/prof/read/trace.h"

namespace ronde::prof {

/// Writes a trace file with one event a line.
class TraceWriter {
 public:
  /// `head`: the members before the events.
  TraceWriter(std::ostream& file, const Json& head);

  /// Adds an event. Ids of flow events become numbers.
  void add(Json event);
  /// Names a process in viewers, which show it at place `index`.
  void name_process(int pid, const std::string& name, int index);
  /// Writes the closing lines, with the member `ronde_end`.
  void finish(const Json& end);

 private:
  std::ostream& file_;
  bool first_ = true;
  std::map<std::string, std::size_t> flow_ids_;
};

/// The trace of LibTorch's profiler on this rank.
struct TorchTrace {
  int rank = 0;
  fs::path path;
};

/// Joins the ranks' files of a timeline in one file on rank 0's clock, with LibTorch's traces.
/// Says in `out` what was written and what is missing.
void merge_timeline(const fs::path& folder, const fs::path& file,
                    const std::vector<TorchTrace>& torch, std::ostream& out);

/// Adds the events of LibTorch's profiler on the clock that `clock` leads to.
void add_torch_trace(const TorchTrace& trace, const Clock& clock, TraceWriter& writer);

/// Writes a file a rank into the folder `to`, in which backward and operations are streams of a
/// device that is not there, as Holistic Trace Analysis wants.
void write_hta(const fs::path& folder, const fs::path& to, std::ostream& out);

/// Writes the files events.csv, for Pipit and pandas, and hatchet.json, for Hatchet, into the
/// folder `to`. Says in `out` what was written and what is missing.
void export_timeline(const fs::path& folder, const fs::path& to, std::ostream& out);

}  // namespace ronde::prof
