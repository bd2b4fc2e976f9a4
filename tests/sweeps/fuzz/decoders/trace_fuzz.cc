// SPDX-License-Identifier: Apache-2.0
// What `ronde prof` reads: profiles, timelines, LibTorch's traces, the flight recorder's dumps.
#include <sstream>

#include "observe/report/report.h"
#include "ronde/error.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"
#include "tests/tools/prof_fixtures.h"
#include "tools/prof/hang/hang.h"
#include "tools/prof/merge/merge.h"
#include "tools/prof/report/views.h"

namespace ronde::fuzz {
namespace {

using test::TemporaryFolder;

// An input is a byte, which says what the rest is.
constexpr char kProfile = 'p', kProfiles = 'r', kTimeline = 't', kTorch = 'l', kDump = 'd';

void report(const std::vector<Profile>& runs, const prof::fs::path& page) {
  std::ostringstream out;
  prof::write_page(runs, page);
  for (const Profile& run : runs) {
    out << report_text(run, true);
    out << report_json(run).dump();
    prof::print_comparison({run, run}, false, out);
  }
}

/// Rank 1's file beside a whole one of rank 0.
void read_timeline(const TemporaryFolder& folder, const std::string& text) {
  test::TracedRank().write(folder);
  test::write_bytes(folder / "rank1.json", text);
  std::ostringstream out;
  report(prof::read_runs(folder.path()), folder / "page.html");
  prof::merge_timeline(folder.path(), folder / "merged", {}, out);
  prof::write_hta(folder.path(), folder / "hta", out);
}

void read_torch(const TemporaryFolder& folder, const std::string& text) {
  test::TracedRank().write(folder);
  test::write_bytes(folder / "torch", text);
  std::ostringstream out;
  prof::merge_timeline(folder.path(), folder / "merged", {{0, folder / "torch"}}, out);
}

void read_dump(const TemporaryFolder& folder, const std::string& text, const std::string& other) {
  test::write_bytes(folder / "rank0.json", other);
  test::write_bytes(folder / "rank1.json", text);
  std::ostringstream out;
  prof::print_hang(folder.path(), out);
}

std::string dump() {
  RankSnapshot snapshot{.ranks = 3, .ranks_of_sets = {{0, {0, 1}}}};
  snapshot.events = test::events_of_a_step();
  snapshot.events.resize(8);  // it waits
  snapshot.at_ns = snapshot.events.back().time_ns;
  return to_json(snapshot, "stall", "").dump();
}

std::string timeline() {
  const TemporaryFolder folder;
  test::TracedRank{.rank = 1}.write(folder);
  return test::read_text(folder / "rank1.json");
}

}  // namespace

std::vector<std::string> valid_inputs() {
  test::ProfiledRun failed;
  failed.failure = "rank 1 was lost";
  return {kProfile + test::ProfiledRun().text(), kProfiles + failed.text(1), kTimeline + timeline(),
          kTorch + std::string(
                       "{\"baseTimeNanoseconds\": 5, \"traceEvents\": [{\"ph\": \"X\", \"pid\": 7, "
                       "\"ts\": 1.5, \"id\": 3, \"name\": \"aten::add\"}]}"),
          kDump + dump()};
}

bool take(std::string_view bytes) {
  if (bytes.empty()) return false;
  const TemporaryFolder folder;
  const std::string text(bytes.substr(1));
  try {
    if (bytes[0] == kProfile || bytes[0] == kProfiles) {
      const char* const name = bytes[0] == kProfile ? "run.json" : "run.rank1.json";
      test::write_bytes(folder / name, text);
      report(prof::read_runs(folder.path()), folder / "page.html");
    } else if (bytes[0] == kTimeline) {
      read_timeline(folder, text);
    } else if (bytes[0] == kTorch) {
      read_torch(folder, text);
    } else {
      read_dump(folder, text, dump());
    }
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace ronde::fuzz
